"""Experiments: what can be run from end to end.

May import: every layer below.
"""
