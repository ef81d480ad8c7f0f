"""mindist: make a pretrained amortised posterior robust, after the fact, without retraining."""

from mindist.lazy import importer

# Imported when asked for, so that the command starts without torch. For type checkers there is
# __init__.pyi, which says the same.
_HOMES = {
    "adaptation": ("Adaptation", "Detection", "Search"),
    "minimum_distance": ("MinimumDistance",),
    "observed": ("read_observed",),
    "posteriors": ("MisspecificationWarning", "RobustPosterior", "watch"),
    "simulating": ("SimulationBank", "simulate"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)
__version__ = "0.1.0"
__getattr__, __dir__ = importer(__name__, _HOMES)
