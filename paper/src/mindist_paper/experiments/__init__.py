"""Experiments: what can be run from end to end."""
