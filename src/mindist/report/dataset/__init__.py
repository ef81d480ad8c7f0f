"""The report on one observed dataset: what is wrong with it, what was done, and what that changes.

`material.py` computes, `words.py`, `figures.py` and `observations.py` say it in sentences, figures
and a table, `write.py` makes the page.
May import: what `mindist.report` may.
"""

from mindist.report.dataset.write import write_report

__all__ = ["write_report"]
