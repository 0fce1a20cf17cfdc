"""The commands of `fdl`: `commands/<name>.py` has a click command called `command`.

The summaries stand here, so that listing them imports no command.
"""

SUMMARIES = {
    "quickstart": "Train a small model on digits drawn here, in under a minute.",
    "test": "Check flodl itself: format, lint, types and the whole test suite.",
    "version": "Show the versions of flodl, PyTorch and Python.",
}
