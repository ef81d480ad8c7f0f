"""Runs a page of the docs: its blocks of Python in order, in one namespace, as a reader would.

A block marked `text` right after a block of Python is what that block has to print, word by word.
Numbers may differ by a fifth or by .1, because another processor trains another network. A block of
any other language is not run.

    python tests/pages.py docs/tutorials/*.md     # run the pages and renew their figures
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

FENCE = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)|^```\{image\} (\S+)", re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """Code, the line of the page it starts in, and what it has to print, if that is known."""

    code: str
    line: int
    expected: str | None = None


def blocks(text: str) -> list[Block]:
    """The blocks of Python of a page."""
    found, previous = [], None
    for match in FENCE.finditer(text):
        language, body = match.groups()
        line = text[: match.start()].count("\n") + 2
        if language == "python":
            found.append(Block(body, line))
        elif language == "text" and previous is not None:
            between = text[previous : match.start()]
            if not between.strip():
                found[-1] = Block(found[-1].code, found[-1].line, body)
        previous = match.end() if language == "python" else None
    return found


def images(text: str) -> list[str]:
    """The pictures that a page shows, as it names them."""
    return [first or second for first, second in IMAGE.findall(text)]


def run(page: Path, folder: Path) -> None:
    """Run a page in a folder, where its figures are written."""
    space: dict[str, object] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    gradients = torch.enable_grad()  # which importing BayesFlow turns off, for good
    gradients.__enter__()
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            # Lines as in the page, so that a traceback points there.
            source = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(source, space)
            if block.expected is not None:
                check(block, printed.getvalue(), page)
    finally:
        gradients.__exit__(None, None, None)
        os.chdir(before)


def agree(expected: str, got: str) -> bool:
    """Whether two texts have the same words, and about the same numbers."""
    words = [NUMBER.sub("#", text).split() for text in (expected, got)]
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(got), strict=False)
    return words[0] == words[1] and all(
        math.isclose(*(float(n.replace(",", "")) for n in pair), rel_tol=0.2, abs_tol=0.1)
        for pair in pairs
    )


def check(block: Block, got: str, page: Path) -> None:
    """Compare what a block printed with what the page says."""
    if not agree(block.expected or "", got):
        raise AssertionError(
            f"{page.name}, block at line {block.line}: expected\n{block.expected}\ngot\n{got}"
        )


def main(pages: list[str]) -> None:
    """Run pages beside themselves, so that their figures are renewed."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    for page in map(Path, pages):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  (sbi and Keras draw from the global state)
        run(page.resolve(), page.resolve().parent)
        print(page, "ran")


if __name__ == "__main__":
    main(sys.argv[1:])
