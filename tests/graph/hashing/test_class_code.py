"""The code of your module classes is part of what a graph computes."""

import importlib.util
import re
import sys

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import save_checkpoint
from flodl.core import CheckpointError
from flodl.graph import structure_of

SOURCE = '''
import torch
from torch import nn

FACTOR = 2.0
NOTES = []


def activation(x):
    return torch.relu(x)


class Base(nn.Module):
    def scaled(self, x):
        return FACTOR * x


class Block(Base):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x, power=1):
        """Add a residual."""
        return x + activation(self.l(self.scaled(x)))

    def describe(self):
        return "a block"


class Scale:
    def __call__(self, x):
        return x * 2
'''


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Build a graph of the classes in a file, as a program does that was edited and started again."""

    def run(old="", new="", what="Block"):
        assert old in SOURCE
        path = tmp_path / "blocks.py"
        path.write_text(SOURCE.replace(old, new) if old else SOURCE)
        spec = importlib.util.spec_from_file_location("blocks", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "blocks", module)
        exec(compile(path.read_text(), path, "exec"), vars(module))
        return FlowBuilder(vars(module)[what]()).build()

    return run


CHANGES = {
    "another forward": ("return x + activation(", "return x - activation("),
    "another method that forward calls": ("return FACTOR * x", "return FACTOR + x"),
    "another function that forward calls": ("torch.relu(x)", "torch.sigmoid(x)"),
    "another constant that a method reads": ("FACTOR = 2.0", "FACTOR = 3.0"),
    "another default": ("power=1", "power=2"),
    "a decorator around another forward": (
        '    def forward(self, x, power=1):\n        """Add a residual."""\n        return x +',
        "    @torch.no_grad()\n    def forward(self, x, power=1):\n        return x *",
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_is_refused_after_the_code_of_a_class_changed(build, tmp_path, change):
    build().save_checkpoint(tmp_path / "model.fdl")
    changed = build(*change)
    assert changed.load_checkpoint(tmp_path / "model.fdl").same_function is False
    with pytest.raises(CheckpointError, match=r"different structure .* your module classes counts"):
        changed.load_checkpoint(tmp_path / "model.fdl", allow_different_structure=False)


SAME = {
    "nothing": ("", ""),
    "a docstring": ("Add a residual.", "Add what the block computes."),
    "no docstring": ('        """Add a residual."""\n', ""),
    "a comment and an empty line": ("FACTOR = 2.0", "# twice\n\nFACTOR = 2.0"),
    "a method that a call does not run": ('return "a block"', 'return "the block"'),
    "another method": ("    def describe", "    def __repr__(self):\n        return ''\n\n    def describe"),
    "the constructor": ("super().__init__()", "super().__init__()\n        print(end='')"),
    "the name of a variable": (
        "scaled(self, x):\n        return FACTOR * x",
        "scaled(self, y):\n        return FACTOR * y",
    ),
    "a global that a call does not read": ("NOTES = []", "NOTES = [1]"),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_what_does_not_change_a_call_does_not_count(build, tmp_path, change):
    build().save_checkpoint(tmp_path / "model.fdl")
    report = build(*change).load_checkpoint(tmp_path / "model.fdl", allow_different_structure=False)
    assert report.same_function


def test_the_call_of_an_object_counts(build):
    before, same = build(what="Scale"), build(what="Scale")
    changed = build("return x * 2", "return x / 2", what="Scale")
    assert before.structural_hash == same.structural_hash != changed.structural_hash


def test_a_file_from_before_the_code_of_classes_counted_is_compared_without_it(build, tmp_path):
    model = build()
    earlier = {"structural_hash": structure_of(model).earlier}
    save_checkpoint(tmp_path / "model.fdl", model.state_dict(), metadata=earlier)
    changed = build(*CHANGES["another forward"])
    assert changed.load_checkpoint(tmp_path / "model.fdl", allow_different_structure=False).same_function
    other = FlowBuilder(changed.block_1).through(nn.ReLU()).build()
    assert other.load_checkpoint(tmp_path / "model.fdl").same_function is False


@pytest.mark.parametrize(("python", "is_same"), [("3.1", True), (None, False)])
def test_code_of_another_version_of_python_is_not_compared(build, tmp_path, python, is_same):
    model = build()
    metadata = structure_of(model).as_metadata()
    metadata |= {"structural_hash": "0" * 64} | ({"flodl_python": python} if python else {})
    save_checkpoint(tmp_path / "model.fdl", model.state_dict(), metadata=metadata)
    assert model.load_checkpoint(tmp_path / "model.fdl").same_function is is_same
    other = FlowBuilder(model.block_1).through(nn.ReLU()).build()
    assert other.load_checkpoint(tmp_path / "model.fdl").same_function is False


def test_functions_of_another_version_of_python_are_not_compared_either(tmp_path):
    first = FlowBuilder(nn.Linear(2, 2)).through(lambda x: x * 2).build()
    second = FlowBuilder(nn.Linear(2, 2)).through(lambda x: x + 1).build()
    metadata = structure_of(first).as_metadata() | {"flodl_python": "3.1"}
    save_checkpoint(tmp_path / "model.fdl", first.state_dict(), metadata=metadata)
    assert second.load_checkpoint(tmp_path / "model.fdl").same_function


def test_graphs_without_classes_of_the_user_keep_their_hashes():
    graph = FlowBuilder(nn.Linear(2, 2)).through(torch.relu).build()
    assert graph.structural_hash == structure_of(graph).earlier
    assert graph.structural_hash == "d853c2b40641f1e14ed526c657857818cae5704f05ec1cafc82a2a7650fdbec5"


ATTRIBUTES = """
import enum
import functools
from torch import nn


class Mode(enum.Enum):
    FAST = 1.0


class Base(nn.Module):
    scale, unused, calls, notes = 2.0, 3.0, 0, []
    table = {"double": lambda x: x * 2}

    class Options:
        gain = 1.0

    @classmethod
    def shifted(cls, x):
        return x + cls.shift

    shift, bias, factor, power = 5.0, 6.0, 7.0, 8.0

    @functools.cached_property
    def cached(self):
        return 1.5

    def times(self, k, x):
        return x * k

    thrice = functools.partialmethod(times, 30.0)


class Block(Base):
    def __init__(self):
        super().__init__()
        self.factor = 7.0

    def forward(self, x):
        type(self).calls += 1
        type(self).notes.append(1)
        x = self.table["double"](self.shifted(x)) * self.scale + type(self).bias * self.factor
        x = self.thrice(x) * self.cached * self.Options.gain * Mode.FAST.value * helper()
        return x ** self.__class__.power


@functools.lru_cache
def helper():
    return 40.0
"""


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("", "", True),
        (
            "scale, unused, calls, notes = 2.0, 3.0, 0, []",
            "scale, unused, calls, notes = 2.0, 4.0, 9, [1]",
            True,
        ),
        ("power = 5.0, 6.0, 7.0, 8.0", "power = 5.0, 6.0, 9.0, 8.0", True),
        ("scale, unused, calls, notes = 2.0", "scale, unused, calls, notes = 4.0", False),
        ("power = 5.0", "power = 6.0", False),
        ("power = 5.0, 6.0", "power = 5.0, 7.0", False),
        ("7.0, 8.0", "7.0, 9.0", False),
        ("gain = 1.0", "gain = 2.0", False),
        ("x * 2", "x * 3", False),
        ("return 1.5", "return 2.5", False),
        ("30.0", "31.0", False),
        ("FAST = 1.0", "FAST = 2.0", False),
        ("40.0", "41.0", False),
    ],
)
def test_values_of_a_class_that_a_call_reads_count(tmp_path, monkeypatch, old, new, is_same):
    graphs = []
    for source in (ATTRIBUTES, ATTRIBUTES.replace(old, new) if old else ATTRIBUTES):
        assert not old or old in ATTRIBUTES
        (tmp_path / "blocks.py").write_text(source)
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_file_location("blocks", tmp_path / "blocks.py")
        )
        monkeypatch.setitem(sys.modules, "blocks", module)
        exec(compile(source, tmp_path / "blocks.py", "exec"), vars(module))
        graphs.append(FlowBuilder(module.Block()).build())
    graphs[0](torch.ones(1))
    graphs[0].save_checkpoint(tmp_path / "model.fdl")
    assert graphs[1].load_checkpoint(tmp_path / "model.fdl").same_function is is_same
    assert FlowBuilder(graphs[0].block_1).build().structural_hash == graphs[0].structural_hash


SETTINGS = """
from argparse import Namespace
from enum import Enum
from types import SimpleNamespace
from torch import nn


class Mode(Enum):
    SUM = 1
    MEAN = 2


class Own:
    def __init__(self):
        self.scale = 1.0


class Constants:
    scale = 1.0


space = SimpleNamespace(scale=1.0, unused=1, calls=[], nested=SimpleNamespace(mode=Mode.SUM, sizes=(1, None)))
arguments, table, own = Namespace(scale=1.0), {"scale": 1.0}, Own()


def of_space(x):
    return x * space.scale


def of_nested(x):
    return (x, space.nested.mode, space.nested.sizes)[0]


def of_arguments(x):
    return x * arguments.scale


def of_table(x):
    return x * table["scale"]


def of_own(x):
    return x * own.scale


def of_class(x):
    return x * Constants.scale
"""
CHANGED = {
    "of_space": "space.scale = 2.0",
    "of_nested": "space.nested.mode = Mode.MEAN",
    "of_arguments": "arguments.scale = 2.0",
    "of_table": "table['scale'] = 2.0",
    "of_own": "own.scale = 2.0",
    "of_class": "Constants.scale = 2.0",
}


def settings_module(tmp_path, name, *, method):
    """Load the functions above, as functions of nodes or as the forward of a module each."""
    bodies = re.findall(r"def (of_\w+)\(x\):\n    (return .*)\n", SETTINGS)
    classes = (
        f"\n\nclass Module_{one}(nn.Module):\n    def forward(self, x):\n        {body}\n"
        for one, body in bodies
    )
    source = SETTINGS + "".join(classes if method else ())
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", [False, True], ids=["function", "method"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_of_a_global_object_counts_where_the_code_reads_it(tmp_path, monkeypatch, name, method):
    monkeypatch.setitem(sys.modules, "settings_of_test", None)

    def structural_hash(change=""):
        module = settings_module(tmp_path, "settings_of_test", method=method)
        exec(change, vars(module))
        node = getattr(module, f"Module_{name}")() if method else getattr(module, name)
        return FlowBuilder(nn.Linear(2, 2)).through(node).build().structural_hash

    assert structural_hash() == structural_hash()
    assert structural_hash() != structural_hash(CHANGED[name])
    if method:
        others = [change for one, change in CHANGED.items() if one != name]
        assert structural_hash() == structural_hash("\n".join([*others, "space.unused = 2"]))
        assert structural_hash() == structural_hash("space.calls.append(1)")
