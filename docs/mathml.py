"""A Sphinx extension: formulas as MathML, made by docutils from their LaTeX.

MathML needs no script, no font and no LaTeX installation; Chromium (from 109), Firefox and Safari
draw it. A formula that docutils cannot read is a warning, and so an error of the build.
"""

import re

from docutils.nodes import SkipNode
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
SMALL_SIGN = re.compile(r"\\textstyle\s*(\\[a-zA-Z]+)")
"""A sign in the style of running text: docutils wants such a declaration in a group of its own."""


def _mathml(node, *, as_block: bool) -> str:
    text = SMALL_SIGN.sub(r"{\\textstyle\1}", node.astext())
    try:
        tree = latex2mathml.tex2mathml(text, as_block=as_block)
    except MathError as error:
        LOGGER.warning("formula %r: %s", text, error, location=node)
        return f"<code>{text}</code>"
    return tree if isinstance(tree, str) else tree.toxml()


def inline(self: HTML5Translator, node) -> None:
    """An inline formula."""
    self.body.append(f'<span class="math">{_mathml(node, as_block=False)}</span>')


def block(self: HTML5Translator, node) -> None:
    """A formula of its own, which scrolls where the page is too narrow for it."""
    self.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>')


def skip(self: HTML5Translator, node) -> None:
    """The formula is written when it is entered."""


def _visit(write):
    def visit(self: HTML5Translator, node) -> None:
        write(self, node)
        raise SkipNode

    return visit


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer and choose it."""
    app.add_html_math_renderer("mathml", (_visit(inline), skip), (_visit(block), skip))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
