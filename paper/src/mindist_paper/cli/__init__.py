"""The commands that this distribution adds to `mindist`: reproduce, bench, tasks."""

import mindist.cli  # noqa: F401  (first: it loads the commands from here)
