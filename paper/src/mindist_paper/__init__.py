"""mindist-paper: reproduces the paper, holds its baselines and all of its tasks, measures speed."""
