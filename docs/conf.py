"""Sphinx configuration of the docs site: `make docs` builds it, with warnings as errors.

No network, neither at build time (no intersphinx) nor when a page is read: furo takes its fonts
from the system, and formulas are MathML (docs/mathml.py), which browsers draw by themselves.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

_root = (HERE.parent / "src/mindist/__init__.py").read_text(encoding="utf-8")

project = "mindist"
author = "the mindist authors"
copyright = "the mindist authors; Apache-2.0"
release = version = re.search(r'__version__ = "(.*)"', _root).group(1)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "links",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# ------------------------------------------------------------------------------ text

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4
highlight_language = "none"  # indented blocks are formulas; fenced ones name their language

# ------------------------------------------------------------------------------ reference

# `name` in a docstring is a link where there is something of that name, and code where not.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    ("py:(class|data|exc)", r"(?!mindist).*"),  # torch, NumPy, ...: not on this site
    ("py:(class|func|meth|attr|mod)", r"mindist\..*"),  # parts that are not public
]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# ------------------------------------------------------------------------------ pages

html_theme = "furo"
html_title = "mindist"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
pygments_style = "friendly"
pygments_dark_style = "native"


def _plain_value(app, what, name, obj, options, lines) -> None:
    """Keep napoleon from reading "words: more words" of a value as a type and its text.

    It looks at the first line that is not empty: let that be an empty comment.
    """
    if what in ("property", "data", "attribute"):
        lines[:0] = ["..", ""]


def setup(app) -> None:
    """Before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", _plain_value, priority=400)
