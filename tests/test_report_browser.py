"""The report in a real browser: it renders, its interactive parts work, it asks for nothing.

CI installs chromium, and without it these tests fail (`chromium` in conftest.py).
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from mindist.report import write_report

pytestmark = pytest.mark.slow

HOSTILE = "first </title><script>document.title = 'hacked'</script>"

SHOWN = "Array.from(document.querySelectorAll('#observations tbody tr'))"
FIRST = f"{SHOWN}.map((row) => Number(row.cells[0].textContent))"
SORTED = (
    "Array.from(document.querySelectorAll('#observations thead th'))"
    ".map((head) => head.getAttribute('aria-sort'))"
)
HEAD = "document.querySelectorAll('#observations thead button')"


@pytest.fixture(scope="module")
def page(tmp_path_factory, task, mds_small):
    """The report on 100 observations, of which 30 are 4 units away; its path and its result."""
    x = task.simulate(torch.zeros(1, 2), generator=torch.Generator().manual_seed(5))[0]
    x_obs = torch.where(torch.arange(100)[:, None] < 30, x + 4, x)
    result = mds_small.adapt(x_obs)
    names = [HOSTILE, "second"]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, result=result, x=x_obs, mds=mds_small, summary_names=names, title=HOSTILE)
    return path, result


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_report_renders_without_complaints_requests_or_overflow(
    chromium, page, width, dark, tmp_path
):
    path, _ = page
    chromium.open(path, width=width, dark=dark)
    assert (
        chromium.run("document.title") == "first </title><script>document.title = 'hacked'</script>"
    )
    assert chromium.run("document.documentElement.scrollWidth") <= width
    background = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    # Figures are as wide as their place, and drawn in the colours of the scheme.
    widths = "Array.from(document.querySelectorAll('figure svg')).map((s) => s.clientWidth)"
    assert min(chromium.run(widths)) > 250
    orange = np.array([0xFF, 0x8A, 0x3C] if dark else [0xD5, 0x5E, 0x00])
    pixels = chromium.pixels(tmp_path / "shot.png")
    assert (np.abs(pixels - orange).max(-1) < 12).sum() > 100
    assert chromium.complaints == []
    assert chromium.requests == [path.as_uri()]


def test_the_table_sorts_filters_and_shows_more(chromium, page):
    path, result = page
    chromium.open(path)
    score = result.outlier_score
    order = score.argsort(descending=True, stable=True).tolist()
    strange = [i for i in order if result.outliers[i]]
    assert len(strange) > 15
    assert chromium.run("document.getElementById('only').checked") is True
    assert chromium.run(FIRST) == strange[:15]
    chromium.run("document.getElementById('more').click()")
    assert chromium.run(FIRST) == strange
    chromium.run("document.getElementById('only').click()")
    assert chromium.run(FIRST) == order
    assert chromium.run(SORTED).count(None) == 5
    chromium.run(f"{HEAD}[0].click()")
    assert chromium.run(FIRST) == list(range(99, -1, -1))
    chromium.run(f"{HEAD}[0].click()")
    assert chromium.run(FIRST) == list(range(100))
    assert chromium.run(SORTED)[0] == "ascending"
    said = chromium.run("document.getElementById('said').textContent")
    assert said == "100 of 100 observations shown, by index, lowest first."
    assert chromium.complaints == []


def test_the_table_is_used_by_keyboard(chromium, page):
    path, _ = page
    chromium.open(path)
    chromium.run(f"{HEAD}[0].focus()")
    chromium.press("Enter", 13)
    assert chromium.run(SORTED)[0] == "descending"
    assert chromium.run(f"document.activeElement === {HEAD}[0]")
    chromium.press(" ", 32)
    assert chromium.run(SORTED)[0] == "ascending"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert chromium.run(outline) == "solid"
    chromium.press("Tab", 9)
    assert chromium.run(f"document.activeElement === {HEAD}[1]")


def test_an_observation_is_shown_in_the_figure(chromium, page):
    path, _ = page
    chromium.open(path)
    button = "document.querySelector('#observations tbody button')"
    index = chromium.run(f"{button}.textContent")
    mark = f"document.getElementById('data-obs-{index}')"
    lit = f"{mark}.classList.contains('lit')"
    stroke = f"getComputedStyle({mark}.querySelector('use')).stroke"
    assert chromium.run(lit) is False
    assert chromium.run(stroke) == "rgb(213, 94, 0)"
    chromium.run(f"{button}.click()")
    assert chromium.run(lit) is True
    assert chromium.run(stroke) == "rgb(27, 27, 27)"
    assert chromium.run(f"{button}.getAttribute('aria-pressed')") == "true"
    chromium.run(f"{button}.click()")
    assert chromium.run(lit) is False


def test_the_page_reads_in_order_and_prints(chromium, page):
    path, _ = page
    chromium.open(path)
    levels = "Array.from(document.querySelectorAll('h1, h2, h3')).map((h) => Number(h.tagName[1]))"
    found = chromium.run(levels)
    assert found[0] == 1
    assert max(after - now for now, after in pairwise(found)) <= 1
    assert chromium.pdf().startswith(b"%PDF")
    small = (
        "Array.from(document.querySelectorAll('button, input, summary')).filter((e) => "
        "e.offsetParent && e.getBoundingClientRect().height < 18).length"
    )
    assert chromium.run(small) == 0


def test_results_display_in_a_notebook_light_and_dark(chromium, page, tmp_path):
    _, result = page
    path = Path(tmp_path) / "cell.html"
    meta = '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    meta = f'<meta charset="utf-8"><meta name="color-scheme" content="light dark">{meta}'
    path.write_text(f"<!DOCTYPE html>{meta}{result._repr_html_()}", "utf-8")
    for dark, colour in ((False, "rgb(0, 0, 0)"), (True, "rgb(255, 255, 255)")):
        chromium.open(path, width=360, dark=dark)
        assert chromium.run("getComputedStyle(document.querySelector('td')).color") == colour
        assert chromium.run("document.documentElement.scrollWidth") <= 360
        assert chromium.complaints == []
        assert "misspecified" in chromium.run("document.body.textContent")
