"""Figures, tables and the page of the experiments: from tidy rows, one for each test dataset."""
