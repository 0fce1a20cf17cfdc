"""The built-in commands: `commands/<name>.py` defines a click command called `command`.

The summaries are here, so that listing them imports no command. A dash in a name becomes an underscore in the
file name.
"""

SUMMARIES = {
    "quickstart": "Train a small model on generated digits in less than a minute.",
    "init": "Create the folder NAME with a project that is ready to train.",
    "add": "Add an optional part of flodl to this project: hf, ray, sweep, trackers or zstd.",
    "run": "Run a command of this project's fdl.yml, or show what would run.",
    "sweep": "Run a command with many values, resumably, and compare the results.",
    "launch": "Run a script on several ranks: on this machine, with Ray or with torchrun.",
    "config": "Show every value of fdl.yml with its file and line, or check the file.",
    "schema": "List, refresh or clear the cached schemas of entries.",
    "monitor": "Show the dashboard of a run that is training, has finished or was killed.",
    "bench": "Measure a training step with plain torch and on each tier.",
    "hf": "Export, verify, compare and convert Hugging Face models.",
    "setup": "Install the build of torch that fits this machine.",
    "install": "Make fdl available in every folder, or update it.",
    "diagnose": "Show the machine, torch and settings, and problems with them.",
    "libtorch": "Use torch from C++: find, show and switch between libtorch folders.",
    "skill": "Teach a coding assistant to port PyTorch code to flodl.",
    "completions": "Print the completion script for bash, zsh or fish.",
    "autocomplete": "Add completion to the startup file of your shell.",
    "api-ref": "List the public names, or explain one of them.",
    "test": "Check flodl itself: format, lint, types and the whole test suite.",
    "version": "Show the versions of flodl, PyTorch and Python.",
}
USE_MANIFEST = ("run", "sweep", "config", "schema")  # these report errors of the manifest themselves
