"""Many observed datasets, one after the other: in order, none lost, every failure listed."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from mindist import MinimumDistance
from mindist.adaptation import Status
from mindist.stream import AdaptationStream, StreamFailure, StreamReport


@pytest.fixture
def ragged(task):
    """40 datasets of 20 to 120 observations, half of them contaminated."""
    generator = torch.Generator().manual_seed(7)
    lengths = [20, 50, 120, 50, 20, 51, 50, 120] * 5
    data = []
    for row, length in enumerate(lengths):
        x = task.simulate(task.sample_prior(1, generator), length, generator=generator)
        data.append((task.contaminate(x, 0.2, generator=generator) if row % 2 else x)[0])
    return data


def assert_alike(one, other):
    """One dataset by itself, and in a batch: sums over batches are rounded otherwise."""
    assert one.status == other.status
    for field in fields(one):
        value, again = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("outliers", "misspecified", "adapted"):
            assert torch.equal(value, again)
        elif isinstance(value, torch.Tensor):
            torch.testing.assert_close(again, value, rtol=1e-2, atol=1e-3, msg=field.name)


@pytest.mark.parametrize("window", [7, 1_000])
def test_a_stream_gives_what_each_dataset_gives_alone(mds_small, ragged, monkeypatch, window):
    monkeypatch.setattr("mindist.stream.WINDOW_DATASETS", window)
    stream = mds_small.adapt_stream(iter(ragged))
    results = list(stream)
    assert [index for index, _ in results] == list(range(40))
    for (_, result), x in zip(results, ragged, strict=True):
        assert_alike(result, mds_small.adapt(x))
    report = stream.report
    assert report.failures == ()
    assert report.adapted == sum(bool(result.adapted) for _, result in results) > 15
    assert report.total == 40


def test_every_failure_is_listed_and_nothing_else_is_lost(task, x_train, ragged):
    def summary(x):
        if (x[:, 0, 0] == 99).any():
            raise ZeroDivisionError("no such thing")
        return torch.where(x[:, :1, 0] == 98, torch.nan, x.mean(1))

    options = {"num_features": 64, "representation": "identity"}
    mds = MinimumDistance(summary, **options).fit(x_train[:400, :30])
    broken = dict(enumerate(ragged))
    broken[0] = ragged[0].clone()
    broken[0][0, 0] = 99
    broken[3] = torch.zeros(50, 3)
    broken[8] = np.full((50, 2), np.nan)
    broken[11] = torch.zeros(2, 50, 2)
    broken[12] = ragged[12].clone()
    broken[12][0, 0] = 98
    broken[17] = "no data"
    broken[18] = torch.zeros(1, 2)
    broken[39] = None
    stream = mds.adapt_stream(broken.values())
    results = dict(stream)
    messages = {failure.index: failure.message for failure in stream.report.failures}
    assert list(messages) == [0, 3, 8, 11, 12, 17, 18, 39]
    assert messages[0] == "ZeroDivisionError: no such thing"
    assert "as in the simulations, got shape (50, 3)" in messages[3]
    assert "expected finite observations, got 50" in messages[8]
    assert "expected one dataset at a time, got a batch of shape (2, 50, 2)" in messages[11]
    assert "expected finite summaries" in messages[12]
    assert "got str" in messages[17]
    assert "at least 2 observations" in messages[18]
    assert "got NoneType" in messages[39]
    assert set(results) == set(range(40)) - set(messages)
    assert stream.report.total == 40
    for index in (1, 2, 13, 38):
        assert_alike(results[index], mds.adapt(ragged[index]))
    text = str(stream.report)
    assert text.startswith(f"40 datasets: {stream.report.adapted} adapted, ")
    assert "8 failed.\n  dataset 0: ZeroDivisionError" in text


def test_a_search_that_finds_nothing_is_listed_and_its_summary_comes_out(mds_small, ragged):
    def adapt(x):
        result = mds_small.adapt(x)
        status = tuple(s if row else Status.KEPT_OBSERVED for row, s in enumerate(result.status))
        return replace(result, status=status)

    stream = AdaptationStream(adapt, ragged, mds_small.event_shape)
    assert [index for index, _ in stream] == list(range(40))
    message = "no summary that fits the data better was found: the observed one is used"
    first_of_each_length = (0, 1, 2, 5)
    failures = tuple(StreamFailure(i, message) for i in first_of_each_length)
    assert stream.report.failures == failures
    assert stream.report.total == 40


def test_reading_is_lazy_and_bounded(mds_small, ragged, monkeypatch):
    read = []

    def reader():
        for index, x in enumerate(ragged):
            read.append(index)
            yield x

    monkeypatch.setattr("mindist.stream.WINDOW_DATASETS", 10)
    stream = mds_small.adapt_stream(reader())
    assert read == []
    assert next(stream)[0] == 0
    assert len(read) == 10
    monkeypatch.setattr("mindist.stream.WINDOW_BYTES", ragged[0].nbytes)
    for _ in range(10):
        last = next(stream)[0]
    assert (last, len(read)) == (10, 11)


def test_a_reader_may_use_its_memory_again(mds_small, ragged):
    def reader():
        room = np.empty((50, 2), dtype=np.float32)
        for x in ragged:
            if len(x) == 50:
                room[:] = x.numpy()
                yield room

    same = [x for x in ragged if len(x) == 50]
    for (_, result), x in zip(mds_small.adapt_stream(reader()), same, strict=True):
        assert_alike(result, mds_small.adapt(x))


def test_what_was_read_before_a_reader_fails_is_adapted(mds_small, ragged):
    def reader():
        yield from ragged[:3]
        raise OSError("the disk is gone")

    stream = mds_small.adapt_stream(reader())
    assert [next(stream)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)
    assert stream.report.total == 3


def test_a_batch_is_halved_not_taken_apart(task, x_train):
    """One bad dataset of 64 is asked for again in each of six halvings."""
    calls = []

    def summary(x):
        if (x[:, 0, 0] == 99).any():
            calls.append(len(x))
            raise ValueError("bad")
        return x.mean(1)

    mds = MinimumDistance(summary, num_features=32, sorting=False).fit(x_train[:400])
    x = x_train[1_000:1_064].clone()
    x[37, 0, 0] = 99
    calls.clear()
    stream = mds.adapt_stream(x)
    assert len(list(stream)) == 63
    assert [failure.index for failure in stream.report.failures] == [37]
    assert calls == [64, 32, 16, 8, 4, 2, 1]


def test_what_is_not_a_stream_is_said(mds_small):
    with pytest.raises(TypeError, match="datasets: expected an iterable"):
        mds_small.adapt_stream(3)
    empty = mds_small.adapt_stream([])
    assert list(empty) == []
    assert empty.report == StreamReport(0, 0, ())
