"""A graph while it is being written: nodes that may still get tags and references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from flodl.core import BuildError, RefError, TagError

from ..control.control import Control
from ..paths import is_graph
from ..plan.signature import Accepts, accepts
from ..plan.spec import Kind, MergeOp, Node, Spec

Target = Callable[..., Any]


class Unfinished:
    """A builder in the middle of its chain; never a node of another, and never a model yet."""

    has_end = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Say what is missing to somebody who calls the chain like a model."""
        raise BuildError("this is a builder, not a model yet. Call .build() at the end of the chain.")


@dataclass(eq=False)
class Draft:
    """One node before it has its final name and place."""

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
        """The first tag, or the label of the graph that the node holds."""
        if self.tags:
            return self.tags[0]
        return getattr(self.target, "label", None) if is_graph(self.target) else None

    def accepted(self) -> Accepts:
        """What `using` may bind here."""
        return accepts(self.target) if self.target is not None and self.kind != "merge" else Accepts()

    def describe(self) -> str:
        """Name the node in an error before it has a key."""
        return repr(self.own_name) if self.own_name else self.describe_kind()

    def describe_kind(self) -> str:
        """Say what the node is, whatever it is called."""
        if self.kind == "input":
            return "an input"
        return type_name(self.target) if self.target is not None else f"the {self.prefix}"


def type_name(target: Any) -> str:
    """Give the word that starts the automatic name of a node.

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


def in_running_order(drafts: Iterable[Draft]) -> list[Draft]:
    """Put the inputs first and every carried value right before its first reader."""
    made = list(drafts)
    order = [draft for draft in made if draft.kind == "input"]
    placed = set(order)
    for draft in made:
        for ref in draft.refs.values():
            if ref.kind == "state" and ref not in placed:
                order.append(ref)
                placed.add(ref)
        if draft not in placed and draft.kind != "state":
            order.append(draft)
            placed.add(draft)
    return order


def name_drafts(order: list[Draft]) -> list[str]:
    """Give every node its key: its first tag, its graph's label, or its type with a count per type.

    Every node of a type counts, named or not, so a new tag renames only its own node.
    """
    counts: dict[str, int] = {}
    keys = []
    named = {draft.own_name for draft in order if draft.kind != "input"}
    for draft in order:
        counts[draft.prefix] = counts.get(draft.prefix, 0) + 1
        if draft.kind in ("input", "state"):
            # The stream's own name is nobody's choice, so a tag may take it.
            taken = draft.kind == "input" and draft.prefix in named
            keys.append(f"{draft.prefix}_0" if taken else draft.prefix)
        elif draft.own_name is None:
            keys.append(f"{draft.prefix}_{counts[draft.prefix]}")
        else:
            places = sum(earlier.target is draft.target for earlier in order[: len(keys)])
            again = places and not draft.tags
            keys.append(f"{draft.own_name}_{places + 1}" if again else draft.own_name)
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
    """Refuse a node whose parameters without default were not all bound."""
    for draft, key in zip(order, keys):
        if draft.target is None or draft.kind == "merge":
            continue
        missing = [name for name in draft.accepted().required if name not in draft.refs]
        if missing:
            names = ", ".join(map(repr, missing))
            raise RefError(
                f"{type_name(draft.target)} needs {names}, and nothing is bound to "
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


def checked(target: Any, where: str) -> Target:
    """Refuse what cannot be called as a node."""
    if isinstance(target, Unfinished):
        raise BuildError(f"{where} got a builder that is not built. Call .build() on it first.")
    if isinstance(target, type):
        raise BuildError(
            f"{where} got the class {target.__name__}, not an instance. Write {target.__name__}(…)."
        )
    if not callable(target):
        raise BuildError(f"{where} got a {type(target).__name__}. Give an nn.Module or a function.")
    return target  # type: ignore[no-any-return]


def several(targets: Any, method: str, *, each: str, plural: str) -> list[Target]:
    """Read a list of at least two nodes."""
    if isinstance(targets, nn.Module) and not isinstance(targets, nn.ModuleList):
        raise BuildError(f"{method} got one module. Give it a list of modules.")
    if isinstance(targets, Mapping):
        raise BuildError(f"{method} got a dict; its {plural} have no names of their own. Give it a list.")
    if not isinstance(targets, Iterable):
        raise BuildError(f"{method} got a {type(targets).__name__}. Give it a list of modules.")
    found = [checked(target, method) for target in targets]
    if len(found) < 2:
        count = f"{len(found)} {each if found else plural}"
        raise BuildError(f"{method} has {count}. Give it at least 2, or use through.")
    return found


def takes_stream_alone(target: Target, where: str) -> Target:
    """Refuse a part that needs references where only the stream arrives."""
    if missing := accepts(target).required:
        raise RefError(
            f"{where} gets the stream alone, but {type_name(target)} also needs "
            f"{', '.join(map(repr, missing))}. Give it a default, or merge the value into the stream."
        )
    return target


def refusal(node: Draft, name: str) -> str:
    """Word why a reference cannot be bound to a node."""
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
