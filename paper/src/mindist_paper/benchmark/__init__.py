"""How fast it is, beside what else there is: ratios measured side by side in one run."""
