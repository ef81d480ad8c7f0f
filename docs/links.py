"""A Sphinx extension: links of Markdown that hold on GitHub, and on the site as well.

Pages link to folders, and to files outside of docs/, which are no pages of the site. Such links
are turned into what the site has in their place, or into plain text. All other links are checked.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files at the root of the repository that are pages of the site under another name."""


def mend(text: str, page: Path, docs: Path) -> str:
    """The text of a page with links that the site can follow.

    Arguments:
        text: Markdown.
        page: Its file.
        docs: The folder of the site's sources.
    """

    def one(match: re.Match) -> str:
        label, target, _ = match.groups()
        if "://" in target or target.startswith(("mailto:", "<")):
            return match[0]
        path = (page.parent / target).resolve()
        if path.is_relative_to(docs) and path.is_file():
            return match[0]
        if path.is_dir() and (path / "README.md").is_file() and path.is_relative_to(docs):
            return f"[{label}]({target.rstrip('/')}/README.md)"
        if path.parent == docs.parent and path.name in PAGES:
            return f"[{label}](/{PAGES[path.name]})"
        left_out = path.suffix == ".html" or path.is_dir() or not path.is_relative_to(docs)
        return label if left_out else match[0]

    return LINK.sub(one, text)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    docs = Path(app.srcdir).resolve()
    source[0] = mend(source[0], Path(app.env.doc2path(docname)).resolve(), docs)


def setup(app: Sphinx) -> dict[str, bool]:
    """Mend the links of each page as it is read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
