"""Nodes of a graph under construction, which may still get tags and references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from flodl.core import BuildError, RefError, TagError
from flodl.core.paths import suggestion

from ..control.control import Control
from ..core import GraphCore
from ..plan.signature import Accepts, accepts
from ..plan.spec import Kind, MergeOp, Node, Spec

Target = Callable[..., Any]


class NoSuchMethod(BuildError, AttributeError):
    """A builder has no attribute of this name; `hasattr` and `copy` need an AttributeError."""


class Unfinished:
    """A builder whose chain is not complete: neither a model nor a node."""

    is_closed = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Raise an error: the chain was called like a model."""
        raise BuildError("this is a builder, not a model yet. Call .build() at the end of the chain.")


@dataclass(eq=False)
class Draft:
    """One node before it has its final key and position."""

    kind: Kind
    prefix: str
    position: int
    target: Target | None = None
    sources: list[Draft] = field(default_factory=list)
    refs: dict[str, Draft] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    merge_op: MergeOp | None = None
    merge_dim: int = -1
    spread: bool = True
    carries: str | None = None

    @property
    def own_name(self) -> str | None:
        """The first tag, or the label if the node is a graph."""
        if self.tags:
            return self.tags[0]
        return self.target.label if isinstance(self.target, GraphCore) else None

    def accepted(self) -> Accepts:
        """Return the references that `using` may bind here."""
        return accepts(self.target) if self.target is not None and self.kind != "merge" else Accepts()

    def describe(self) -> str:
        """Return a name for error messages, before the node has a key."""
        return repr(self.own_name) if self.own_name else self.describe_kind()

    def describe_kind(self) -> str:
        """Return the type of the node for error messages."""
        if self.kind == "input":
            return "an input"
        return type_name(self.target) if self.target is not None else f"the {self.prefix}"


def type_name(target: Any) -> str:
    """Return the word that starts the automatic name of a node.

    >>> type_name(nn.LayerNorm(2)), type_name(len), type_name(lambda x: x)
    ('layernorm', 'len', 'lambda')
    """
    if isinstance(target, Control):
        return target.kind
    inner = getattr(target, "func", None)
    if not isinstance(target, nn.Module) and callable(inner):
        return type_name(inner)
    name = type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", None)
    word = (name or type(target).__name__).strip("<>").lower()
    return "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in word)


def execution_order(drafts: Iterable[Draft]) -> list[Draft]:
    """Order the nodes: inputs first, and every carried value right before its first reader."""
    drafts = list(drafts)
    order = [draft for draft in drafts if draft.kind == "input"]
    placed = set(order)
    for draft in drafts:
        for ref in draft.refs.values():
            if ref.kind == "state" and ref not in placed:
                order.append(ref)
                placed.add(ref)
        if draft not in placed and draft.kind != "state":
            order.append(draft)
            placed.add(draft)
    return order


def name_drafts(order: list[Draft]) -> list[str]:
    """Return the key of every node: its first tag, its graph's label, or its type with a number.

    All nodes of a type are counted, named or not, so a new tag renames only its own node.
    """
    counts: dict[str, int] = {}
    keys = []
    named = {draft.own_name for draft in order if draft.kind != "input"}
    for draft in order:
        counts[draft.prefix] = counts.get(draft.prefix, 0) + 1
        if draft.kind in ("input", "state"):
            # The name of the stream is a default, so a tag may take it.
            taken = draft.kind == "input" and draft.prefix in named
            keys.append(f"{draft.prefix}_0" if taken else draft.prefix)
        elif draft.own_name is None:
            keys.append(f"{draft.prefix}_{counts[draft.prefix]}")
        else:
            uses = sum(earlier.target is draft.target for earlier in order[: len(keys)])
            is_reused = uses and not draft.tags
            keys.append(f"{draft.own_name}_{uses + 1}" if is_reused else draft.own_name)
    _check_unique(order, keys)
    return keys


def _check_unique(order: list[Draft], keys: list[str]) -> None:
    first: dict[str, Draft] = {}
    for draft, key in zip(order, keys):
        other = first.setdefault(key, draft)
        if other is draft:
            continue
        raise TagError(
            f"the name {key!r} belongs to two nodes: a tag or label, and the automatic name of another. "
            "Rename the tag."
        )


def check_required(order: list[Draft], keys: list[str]) -> None:
    """Raise if a node has a parameter without a default that is not bound."""
    for draft, key in zip(order, keys):
        if draft.target is None or draft.kind == "merge":
            continue
        missing = [name for name in draft.accepted().required if name not in draft.refs]
        if missing:
            names = ", ".join(map(repr, missing))
            raise RefError(
                f"{type_name(draft.target)} needs {names}, but nothing is bound to "
                f"{'it' if len(missing) == 1 else 'them'}. Add .using({names}) after it.",
                path=key,
            )


def freeze(
    order: list[Draft],
    keys: list[str],
    output: Draft,
    *,
    tagged: dict[str, Draft],
    groups: dict[str, tuple[str, ...]],
    internal: set[str],
    label: str | None,
) -> Spec:
    """Turn the drafts into a spec."""
    index = {draft: position for position, draft in enumerate(order)}
    nodes = []
    for draft, key in zip(order, keys):
        is_module = isinstance(draft.target, nn.Module)
        nodes.append(
            Node(
                key=key,
                kind=draft.kind,
                sources=tuple(index[source] for source in draft.sources),
                refs=tuple((name, index[ref]) for name, ref in draft.refs.items()),
                function=None if is_module else draft.target,
                has_module=is_module,
                merge_op=draft.merge_op,
                merge_dim=draft.merge_dim,
                spread=draft.spread,
                carries=draft.carries,
            )
        )
    return Spec(
        nodes=tuple(nodes),
        output=index[output],
        tags=tuple((tag, index[draft]) for tag, draft in tagged.items()),
        groups=tuple(groups.items()),
        input_names=tuple(draft.prefix for draft in order if draft.kind == "input")[1:],
        internal_tags=frozenset(internal | {tag for tag in tagged if tag.startswith("_")}),
        label=label,
    )


def no_such_method(name: str, model: type, methods: list[str]) -> NoSuchMethod:
    """Return the error for an attribute that the builder does not have."""
    if hasattr(model, name) and not name.startswith("_"):
        return NoSuchMethod(f".{name} belongs to the model, and this is a builder. Call .build() first.")
    hint = suggestion(name, methods, known_as="methods")
    return NoSuchMethod(f"FlowBuilder has no method {name!r}. {hint}")


def check_one_argument(method: str, more: tuple[Any, ...], right: str) -> None:
    """Raise if a method got its modules as separate arguments."""
    if more:
        raise BuildError(f"{method} got {len(more)} argument{'s' * (len(more) > 1)} too many. Write {right}.")


def check_target(target: Any, where: str) -> Target:
    """Raise if a value cannot be a node."""
    if isinstance(target, Unfinished):
        raise BuildError(f"{where} got a builder that is not built. Call .build() on it first.")
    if isinstance(target, type):
        raise BuildError(
            f"{where} got the class {target.__name__}, not an instance. Write {target.__name__}(…)."
        )
    if not callable(target):
        raise BuildError(f"{where} got {_kind_of(target)}. Pass an nn.Module or a function.")
    return target  # type: ignore[no-any-return]


def check_targets(targets: Any, method: str, *, each: str, plural: str) -> list[Target]:
    """Return a list of at least two nodes, or raise."""
    if isinstance(targets, nn.Module) and not isinstance(targets, nn.ModuleList):
        raise BuildError(f"{method} got one module. Pass a list of modules.")
    if isinstance(targets, Mapping):
        raise BuildError(f"{method} got a dict, but its {plural} have fixed names. Pass a list.")
    if not isinstance(targets, Iterable):
        raise BuildError(f"{method} got {_kind_of(targets)}. Pass a list of modules.")
    found = [check_target(target, method) for target in targets]
    if len(found) < 2:
        count = f"{len(found)} {each if found else plural}"
        raise BuildError(f"{method} got {count}. Pass at least 2, or use through.")
    return found


def _kind_of(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def check_no_references(target: Target, where: str) -> Target:
    """Raise if a part that receives only the stream needs references."""
    if missing := accepts(target).required:
        raise RefError(
            f"{where} receives only the stream, but {type_name(target)} also needs "
            f"{', '.join(map(repr, missing))}. Give it a default, or merge the value into the stream."
        )
    return target


def explain_rejection(node: Draft, name: str) -> str:
    """Return the message that says why a reference cannot be bound to a node."""
    accepted = node.accepted()
    receiver = {"gate": "the router of the gate", "switch": "the selector of the switch"}.get(
        node.kind, node.describe()
    )
    if node.kind == "map":
        return (
            f"a map takes no references, so {name!r} cannot be bound to it. Bind it to a node before the map."
        )
    fix = f"Add a keyword parameter {name!r} (or **refs) to its forward, or use another tag."
    if not accepted.readable:
        fix = f"Wrap it in a function with a parameter {name!r}."
    return f"{receiver} takes no reference {name!r}: {accepted.describe()}. {fix}"
