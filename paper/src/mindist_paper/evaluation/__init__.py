"""Metrics, tensors in, tensors out; and the runner, cells in, tidy rows out."""
