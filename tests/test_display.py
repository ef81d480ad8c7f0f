"""Results in a notebook: compact, complete, escaped."""

import torch

from page_reader import read


def test_one_dataset_is_a_list_of_facts(mds_small, x_train):
    result = mds_small.adapt(x_train[0] + 5)
    reader = read(result._repr_html_())
    text = " ".join(reader.text)
    assert "misspecified" in text
    assert f"{float(result.p_value):.4g} (at most alpha = 0.05)" in text
    assert "threshold" not in text  # the combined test does not compare the distance with one
    assert f"{int(result.outliers.sum())} of 100 observations" in text
    assert "Adapted summary" in text
    assert not {"style", "script", "img", "link"} & {tag for tag, _ in reader.seen}


def test_a_detection_says_nothing_of_adaptation(mds_small, x_train):
    text = " ".join(read(mds_small.detect(x_train[0])._repr_html_()).text)
    assert "not misspecified" in text
    assert "above alpha = 0.05" in text
    assert "Adapted" not in text


def test_a_batch_is_a_table_of_its_first_datasets(mds_small, x_train):
    result = mds_small.adapt(torch.cat([x_train[:11], x_train[:2] + 5]))
    reader = read(result._repr_html_())
    text = " ".join(reader.text)
    assert f"{int(result.misspecified.sum())} of 13 datasets misspecified" in text
    assert "and 3 more" in text
    assert [tag for tag, _ in reader.seen].count("tr") == 11


def test_whatever_a_status_says_is_escaped(mds_small, x_train):
    result = mds_small.adapt(x_train[0])
    object.__setattr__(result, "status", "<script>alert(1)</script>")
    assert "<script" not in result._repr_html_()
