"""A zoo of small models, which the default was developed on, and judges, which it was not.

`models` may be imported by anyone; only `mindist_paper.cli` imports `run`.
"""
