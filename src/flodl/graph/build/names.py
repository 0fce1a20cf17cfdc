"""Names that a tag or label cannot have, because the module could not be found under them."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Sequence
from functools import cache

from torch import fx

from flodl.core import BuildError, TagError
from flodl.core.formats import a_type
from flodl.core.paths import check_name

from ..graph import Graph
from ..plan.spec import Node, Spec

# Attributes of exported and unflattened programs, besides those of `fx.GraphModule`.
_OF_EXPORTS = frozenset(
    {
        "_guards_fn",
        "_in_spec",
        "_out_spec",
        "adapted",
        "arg_names",
        "check_input_constraints",
        "equality_constraints",
        "finalize",
        "flat_args_adapter",
        "graph_module",
        "graph_signature",
        "input_placeholders",
        "ivals",
        "module_call_graph",
        "process_forward_inputs",
        "range_constraints",
        "validate_inputs",
    }
)


def check_child_name(name: object, what: str) -> str:
    """Return a name if a module of a graph can have it; otherwise raise.

    >>> check_child_name("hidden", "tag")
    'hidden'
    >>> check_child_name("code", "tag")
    Traceback (most recent call last):
    flodl.core.errors.TagError: the tag 'code' is also an attribute of every graph, so get_submodule or \
torch.export would fail. Use a different name, for example 'code_value'.
    """
    name = check_name(name, what)
    taken = _what_has(name)
    if taken is None:
        return name
    usable = f"{name.strip('_') or what}_{'graph' if what == 'label' else 'value'}"
    raise TagError(
        f"the {what} {name!r} is also {taken}, so get_submodule or torch.export would fail. "
        f"Use a different name, for example {usable!r}."
    )


def check_input_name(name: object) -> str:
    """Return a name if an input can have it as a keyword argument; otherwise raise."""
    name = check_name(name, "input")
    if name == "input":
        raise TagError("'input' is the default name of the stream. Use a different name, such as 'ctx'.")
    if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
        raise TagError(
            f"the input {name!r} cannot be a keyword argument. Use a different name, such as 'ctx'."
        )
    return name


def check_initial_names(tags: Iterable[str], keys: Collection[str]) -> None:
    """Raise if the initial value of a carried tag, stored as `tag_init`, needs the name of something else."""
    for tag in tags:
        stored = f"{tag}_init"
        taken = "a node" if stored in keys else _what_has(stored)
        if taken is not None:
            raise TagError(
                f"the initial value of the carried tag {tag!r} is stored as {stored!r}, which is also "
                f"{taken}. Rename one of them."
            )


def _what_has(name: str) -> str | None:
    """Return what has a name already, or None."""
    if keyword.iskeyword(name):
        return "a keyword of Python"
    if name in _graph_attributes():
        return f"{'a method' if callable(getattr(Graph, name, None)) else 'an attribute'} of every graph"
    return "an attribute of every exported program" if name in _export_attributes() else None


@cache
def _graph_attributes() -> frozenset[str]:
    smallest = Graph(Spec(nodes=(Node("input", "input"),), output=0), {})
    return frozenset(dir(smallest))


@cache
def _export_attributes() -> frozenset[str]:
    return _OF_EXPORTS | frozenset(dir(fx.GraphModule({}, fx.Graph())))


def check_one_by_one(method: str, names: Sequence[object]) -> None:
    """Raise if names were passed as a list."""
    for given in names:
        if isinstance(given, list | tuple):
            call = ", ".join(map(repr, given))
            raise BuildError(f"{method} got {a_type(given)}. Pass the names one by one: {method}({call}).")
