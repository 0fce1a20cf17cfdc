"""Tests use no names that start with an underscore: they use public names, or inner ones of a package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Folders whose tests still use private names.
NOT_YET = {"browser", "cli", "faults", "graph", "monitor", "observe", "train"}
FILES = sorted(path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in NOT_YET)

# What has no public name: in modules,
FOREIGN = {
    "aten": "operators in the graphs of torch's compiler",
    "os": "_exit ends a forked process without pytest's cleanup",
    "torch": "_dynamo resets the compiler; _C tells whether a stream is being captured",
    "warnings": "_showwarnmsg is called for every warning",
}
# and elsewhere.
ALLOWED = {
    "_HOME": "where flodl finds its lazy names; the module itself has only public names",
    "_PACKAGES": "likewise",
    "_cdata": "the identity of a storage",
    "_schema": "the arguments of an operator",
    "_version": "how often torch has written into a tensor",
}
# Functions that take the name of an attribute.
BY_NAME = {"attrgetter", "delattr", "getattr", "hasattr", "setattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def root_of(node: ast.AST) -> str:
    """Return the name that a chain of attributes, calls and subscripts starts with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def private_names(code: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each use of a private name that is not the code's own."""
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not is_own and node.attr not in ALLOWED and root_of(node) not in FOREIGN:
                names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flodl":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and called(node) in BY_NAME:
            names = [*names_in(node.args)]
        yield from ((node.lineno, name) for name in names if is_private(name))


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else root_of(call.func)


def names_in(arguments: list[ast.expr]) -> Iterator[str]:
    """Yield the attributes that strings among these arguments name: "_body" or "flodl.engine.step._body"."""
    if arguments and root_of(arguments[0]) in FOREIGN:
        return
    for argument in arguments:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            path, _, name = argument.value.rpartition(".")
            if path.split(".")[0] in ("", "flodl"):
                yield name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_uses_no_private_name(path):
    found = [f"line {line} uses {name}" for line, name in private_names(path.read_text())]
    assert not found, "assert on what users see, or drop the underscore: inner modules are private anyway"


@pytest.mark.parametrize(
    "code",
    [
        "step._body.model",
        "new_step()._body",
        "steps[0].report._body = 3",
        "from flodl.engine.step import _helper",
        "monkeypatch.setattr(controller, '_plan', None)",
        "monkeypatch.setattr('flodl.engine.tiers.controller._plan', None)",
        "getattr(step, '_body')",
        "map(operator.attrgetter('_body'), steps)",
    ],
)
def test_the_check_finds_each_way_to_use_a_private_name(code):
    assert [*private_names(code)]


@pytest.mark.parametrize(
    "code",
    [
        "self._count += 1",
        "torch._dynamo.reset()",
        "graph.call_function(aten._unsafe_view.default)",
        "monkeypatch.setattr(torch._C, '_cuda_isCurrentStreamCapturing', None)",
        "monkeypatch.setattr('torch._inductor.compile_fx.compile_fx', None)",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from flodl.optim._preview import preview",
        "assert '_local_scalar_dense' not in str(func)",
        "RunningMeans.__new__(RunningMeans)",
    ],
)
def test_the_check_allows_own_attributes_and_those_of_torch(code):
    assert not [*private_names(code)]
