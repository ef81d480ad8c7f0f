"""mindist: make a pretrained amortised posterior robust, after the fact, without retraining."""

import lazy_loader

# Names are imported when they are first asked for, so that the command starts without torch; the
# list of them, for type checkers too, is __init__.pyi.
__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
