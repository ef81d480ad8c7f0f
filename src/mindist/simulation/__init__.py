"""Simulations at scale: jobs in many processes, chunks with their own seeds, a bank on disk.

May import `protocols`, `checks`, `threads`, `atomic`, `storage`, `layout`, `summarise` and, for the
metadata of Zarr, `observed`; knows nothing of features or the estimator. joblib, Zarr and
cloudpickle are imported when they are needed: the extra is `mindist[bank]`.
"""
