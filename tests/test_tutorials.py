"""Every tutorial runs, prints what it says, and makes the figure that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import agree, blocks, images, run

TUTORIALS = sorted((Path(__file__).parent.parent / "docs/tutorials").glob("*.md"))


def test_a_page_is_cut_into_blocks() -> None:
    page = "# A\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```console\nls\n```\n"
    (block,) = blocks(page)
    assert (block.code, block.line, block.expected) == ("print(1)\n", 4, "1\n")


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("error 0.5", "error 0.55", True),
        ("error 0.5", "error 0.9", False),
        ("1,000 found", "1000 found", True),
        ("found", "lost", False),
    ],
)
def test_numbers_agree_roughly_and_words_exactly(expected: str, got: str, same: bool) -> None:
    assert agree(expected, got) is same


def test_there_are_nine() -> None:
    assert len(TUTORIALS) == 9


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries that a reader works with
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "bayesflow":
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        pytest.importorskip("bayesflow")
    run(page, tmp_path)
    shown = images(page.read_text(encoding="utf-8"))
    assert shown
    for name in shown:
        assert (tmp_path / name).stat().st_size > 5_000
        assert (page.parent / name).exists()
