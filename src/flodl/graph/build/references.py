"""Checks of the references that `using` binds to a node."""

from __future__ import annotations

from collections.abc import Container, Mapping

from flodl.core import RefError
from flodl.core.paths import check_name

from ..core import Initial, check_initial
from .draft import Draft, explain_rejection


def check_own_tag(tag: str, method: str) -> str:
    """Return the name of a tag; raise if it is a path into a nested graph."""
    if isinstance(tag, str) and "." in tag.strip("."):
        inner = tag.strip(".").rpartition(".")[2]
        raise RefError(
            f"{method}({tag!r}): a graph can read its own tags, not those of a graph inside it. Return the "
            f"value from the inner graph with output({inner!r}, …): its result is a dict, which can be "
            "tagged and used."
        )
    return check_name(tag, "tag")


def check_reference(
    node: Draft,
    parameter: str,
    name: str,
    init: Initial,
    tagged: Mapping[str, Draft],
    initial: Mapping[str, Initial],
    pending: Container[str],
) -> None:
    """Raise if a tag cannot be passed to a parameter of a node."""
    if parameter in node.refs:
        raise RefError(f"{node.describe()} already uses {parameter!r}. Name each reference once.")
    if not node.accepted().takes(parameter):
        raise RefError(explain_rejection(node, parameter))
    known = tagged.get(name)
    if known is None:
        check_initial(init, name)
        if name in pending and init is not None and init is not initial.get(name):
            raise RefError(f"{name!r} has two initial values. Pass init only in its first using.")
        return
    if init is not None:
        raise RefError(
            f"using({name!r}, init=…): the tag already exists, so its value of this call is used and "
            "needs no initial value. Remove init, or call using before tag to carry it."
        )
    if known.kind != "input" and known.position >= node.position:
        raise RefError(
            f"{node.describe()} cannot use {name!r}: that value depends on it, which would be a cycle. "
            "Call using before tag to get the value of the previous call."
        )
