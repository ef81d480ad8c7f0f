"""How fast it is, beside what else there is: ratios measured side by side in one run.

A row of the table is one ratio of two contenders that took turns on the same input; absolute times
are kept beside it but are those of one machine on one day. Only `literal` imports scikit-learn and
sbi.

May import: every layer below `cli`.
"""
