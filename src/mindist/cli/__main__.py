"""`python -m mindist.cli` is `mindist`."""

from mindist.cli import app

app(prog_name="mindist")
