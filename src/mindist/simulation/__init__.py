"""Simulations at scale: jobs in many processes, chunks with their own seeds, a bank on disk.

joblib, Zarr and cloudpickle are imported when they are needed: the extra is `mindist[bank]`. May
import: `minimum_distance`, which chooses the embedding (in `build` only), and the layers below it.
"""
