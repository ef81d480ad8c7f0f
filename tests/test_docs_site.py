"""The docs site: it builds without a warning, its links hold, and its pictures are made by code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

from browser import Browser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))  # where its scripts find each other


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layers() -> list[list[str]]:
    """The import contract, highest first; those side by side in one list."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^layers = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL).group(1)
    return [re.findall(r"\w+", line) for line in re.findall(r'"(.*)"', block)]


class Page(HTMLParser):
    """The links, ids and sources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.sources = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.sources += [given[k] for k in ("src", "href") if tag != "a" and given.get(k)]


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as `make docs` builds it, which reads again only what has changed since."""
    pytest.importorskip("sphinx")
    out = DOCS / "_build/html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    environment = os.environ | {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(DOCS), str(out)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(target)
            found = target.exists() and (
                not parts.fragment or known is None or unquote(parts.fragment) in known.ids
            )
            dead += [] if found else [f"{path.relative_to(site)}: {link}"]
    assert not dead, "\n".join(dead)


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        outside = [s for s in Page(path).sources if urlsplit(s).scheme in ("http", "https")]
        assert not outside, f"{path.relative_to(site)}: {outside}"


@pytest.mark.slow
def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "api/parts.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "\\mathbb" not in page


@pytest.mark.slow
def test_no_words_of_a_docstring_are_taken_for_a_type(site: Path) -> None:
    for path in (site / "api").glob("*.html"):
        assert ">Type<span" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_a_phone_and_pictures_the_theme(
    site: Path, chromium: Browser, dark: bool
) -> None:
    shown = (
        "[...document.querySelectorAll('img.themed')].filter(i => i.offsetParent && i.naturalWidth)"
        ".map(i => i.src.replace(/.*-/, ''))"
    )
    for name in ("index", "architecture", "comparison", "tutorials/sbi", "api/main", "genindex"):
        chromium.open(site / f"{name}.html", width=390, height=844, dark=dark)
        assert chromium.run("document.documentElement.scrollWidth") <= 390, name
        assert not chromium.complaints
        pictures = {"index": 2, "architecture": 1}.get(name, 0)
        assert chromium.run(shown) == ["dark.svg" if dark else "light.svg"] * pictures


def test_the_table_of_layers_is_the_import_contract() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = page.split("| layer |")[1].split("\n\n")[0]
    named = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert named == layers()


def test_pictures_have_a_light_and_a_dark_version() -> None:
    for path in (DOCS / "index.md", DOCS / "architecture.md"):
        shown = re.findall(
            r"_static/(\S+)-(light|dark)\.svg\n:class: themed only-(\w+)", path.read_text("utf-8")
        )
        assert shown
        assert all(version == page for _, version, page in shown)
        names = {name for name, *_ in shown}
        assert {(name, version) for name, version, _ in shown} == {
            (name, version) for name in names for version in ("light", "dark")
        }


def test_every_colour_of_a_picture_has_its_counterpart_in_the_dark() -> None:
    themed = load("themed")
    for light in themed.FOLDER.glob("*-light.svg"):
        text = light.read_text(encoding="utf-8")
        assert set(themed.COLOUR.findall(text)) <= set(themed.DARK)
        dark = themed.COLOUR.sub(lambda found: themed.DARK[found[0]], text)
        assert light.with_name(light.name.replace("light", "dark")).read_text("utf-8") == dark


def test_the_picture_of_the_architecture_names_layers() -> None:
    figure = load("architecture_figure")
    known = {layer for row in layers() for layer in row}
    named = [layer for _, _, layer in (*figure.OFFLINE, *figure.ONLINE)]
    assert set(named) <= known
    order = [layer for row in reversed(layers()) for layer in row]
    upward = [order.index(layer) for layer in named[: len(figure.OFFLINE)][2:]]
    assert upward == sorted(upward)


def test_links_to_folders_and_beyond_the_docs_are_mended(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    mend = load("links").mend
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (docs / "results/README.md").touch()
    (docs / "page.md").touch()
    text = (
        "[a](results) [b](page.md#x) [c](../LICENSE) [d](../CHANGELOG.md) [e](gone.md) [f](i.html)"
    )
    expected = "[a](results/README.md) [b](page.md#x) c [d](/changelog.md) [e](gone.md) f"
    assert mend(text, docs / "page.md", docs) == expected
