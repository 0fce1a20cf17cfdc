"""The commands of `fdl`: `commands/<name>.py` has a click command called `command`.

The summaries stand here, so that listing them imports no command. A dash in a name is an underscore in the
name of its file.
"""

SUMMARIES = {
    "quickstart": "Train a small model on generated digits in less than a minute.",
    "init": "Make the folder NAME with a project that trains at once.",
    "run": "Run a command of this project's fdl.yml, or show what would run.",
    "config": "Show every value of fdl.yml with its file and line, or check the file.",
    "schema": "List, refresh or clear what is known about the options of entries.",
    "monitor": "Show the page of a run: training now, ended or killed.",
    "bench": "Measure a training step as plain torch runs it and on each tier.",
    "setup": "Find the build of torch that fits this machine, and install it.",
    "diagnose": "Show the machine, torch and settings, and what is wrong with them.",
    "libtorch": "Use torch from C++: find, show and switch between libtorch folders.",
    "completions": "Print the completion script for bash, zsh or fish.",
    "api-ref": "List the public names, or explain one of them.",
    "test": "Check flodl itself: format, lint, types and the whole test suite.",
    "version": "Show the versions of flodl, PyTorch and Python.",
}
