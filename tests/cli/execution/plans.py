"""A plan for the manifest in the working directory."""

from pathlib import Path

from flodl.cli.execution.plan import make_plan
from flodl.cli.manifest.loader import load
from flodl.cli.manifest.lookup import resolve_target


def planned(*words, overlay=""):
    return make_plan(resolve_target(load(path_here(), overlay=overlay), words[0], tuple(words[1:])))


def path_here():
    return Path.cwd() / "fdl.yml"
