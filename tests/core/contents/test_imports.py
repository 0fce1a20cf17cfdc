"""What a function imports in its body is described by the files of the user; nothing is imported for it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import flodl
from flodl.core.contents import Contents

LOSSES = """
'''Losses.'''
import math
from constants import BETA
import constants as settings
from .nothing import missing

SCALE = 2.0
UNUSED = 1.0
API_KEY = "abc"

def helper(x):
    return x * SCALE * BETA * settings.GAMMA

def ce(x):
    return helper(x) if API_KEY else math.exp(x)

def other(x):
    return x
"""
CONSTANTS = "BETA = 1.0\nGAMMA = 3.0\nDELTA = 5.0\n"
PROGRAM = """
import json, sys
from flodl.core.contents import Contents

def step(model, x):
    {how}

found = Contents().of(step)
assert "losses" not in sys.modules and "constants" not in sys.modules
print(json.dumps({{name: item for name, item in found.items() if name != "code"}}))
"""
FROM = "from losses import ce; return ce(x)"
MODULE = "import losses; return losses.ce(x)"
NESTED = "import math; from pkg import losses as inner; return inner.ce(math.sqrt(x))"


def described(folder, *, how=FROM, losses=LOSSES, constants=CONSTANTS):
    where = folder / "pkg" if how is NESTED else folder
    where.mkdir(exist_ok=True)
    (where / "__init__.py").write_text("raise AssertionError('imported')\n")
    (where / "losses.py").write_text(losses)
    (folder / "constants.py").write_text(constants)
    (folder / "program.py").write_text(PROGRAM.format(how=how))
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(flodl.__file__).parent.parent)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", [FROM, MODULE, NESTED], ids=["names", "module", "package"])
def test_a_module_that_is_imported_in_the_body_is_described_without_importing_it(tmp_path, how):
    found = described(tmp_path, how=how)
    assert '"ce": "ce #' in found
    assert '"SCALE": 2.0' in found
    assert '"constants": {"BETA": 1.0, "GAMMA": 3.0}' in found
    assert "UNUSED" not in found
    assert '"abc"' not in found
    unchanged = LOSSES.replace("return x\n", "return -x\n").replace(
        "def helper(x):", "def helper(x):\n    'Help.'"
    )
    assert described(tmp_path, how=how, losses=unchanged) == found
    assert described(tmp_path, how=how, losses=LOSSES.replace("else math", "else -math")) != found
    assert described(tmp_path, how=how, losses=LOSSES.replace("2.0", "4.0")) != found
    assert described(tmp_path, how=how, constants=CONSTANTS.replace("3.0", "4.0")) != found


def test_the_description_is_the_same_once_the_module_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(textwrap.dedent("W = 2.0\ndef ce(x):\n    return x * W\n"))
    monkeypatch.syspath_prepend(tmp_path)

    def step(x):
        from own_losses import ce

        return ce(x)

    before = Contents().of(step)
    assert before["own_losses"]["W"] == 2.0
    assert step(1.0) == 2.0
    assert Contents().of(step) == before
    monkeypatch.delitem(sys.modules, "own_losses")


def test_modules_of_libraries_and_missing_modules_are_left_out():
    def step(x):
        import torch.nn.functional as functional
        from nowhere.at_all import something
        from torch import nn

        return something(functional.relu(nn.Linear(x)))

    assert isinstance(Contents().of(step), str)
