"""A zoo of small models: what the default does on simulators that nobody tuned it for.

`models` may be imported by anyone; only `mindist_paper.cli` imports `run`.
"""
