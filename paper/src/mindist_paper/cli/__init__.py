"""The commands that this distribution adds to `mindist`: reproduce, bench, tasks."""
