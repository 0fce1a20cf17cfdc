"""Notes and errors about chains that are valid, but probably not what was meant."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from flodl.core import log

from ..control.control import Control
from ..plan.overwriting import note_overwritten_tag, rejected, writes_into_input
from .draft import Draft, Target


def note_unread(order: list[Draft], keys: list[str], output: Draft, stream: Draft) -> None:
    """Log the nodes and inputs that nothing reads."""
    used = {source for draft in order for source in [*draft.sources, *draft.refs.values()]}
    for draft, key in zip(order, keys):
        ends_here = draft not in used and draft is not output and not draft.tags
        if ends_here and draft.kind not in ("input", "state"):
            log.warn("note: nothing reads '%s', but it runs in every call. Tag it to read it.", key)
        elif draft.kind == "input" and draft not in used and draft is not stream:
            log.warn("note: nothing reads the input '%s'. Bind it with using, or remove it.", key)


def note_second_build() -> None:
    """Log that two graphs of one builder share their modules."""
    log.warn(
        "note: this builder was built before. Both graphs contain the same modules, so they share weights, "
        "and the new one continues the chain of the first. For separate models, write a function that "
        "returns a new one."
    )


def note_one_module(targets: Sequence[Target], method: str, plural: str) -> None:
    """Log that all branches are one module, as after `[nn.Linear(8, 8)] * 3`."""
    first = targets[0]
    if not isinstance(first, nn.Module) or any(target is not first for target in targets):
        return
    # With dropout, two passes through one module are different, and so may be intended.
    if any(True for _ in first.parameters()) and not _is_random(first):
        log.warn(
            "note: the %d %s of %s are the same module, so they share their weights and are always equal. "
            "Create one for each: [make() for _ in range(%d)].",
            len(targets),
            plural,
            method,
            len(targets),
        )


def check_in_place(order: list[Draft], keys: list[str], output: Draft) -> None:
    """Raise if a module overwrites a value that is read later; log if the value is tagged."""
    for position, draft in enumerate(order):
        if isinstance(draft.target, Control):
            _check_parts(draft.target, keys[position])
        if draft.kind in ("input", "state", "merge") or not writes_into_input(draft.target):
            continue
        source = draft.sources[0]
        readers = [
            repr(key)
            for later, key in zip(order[position + 1 :], keys[position + 1 :])
            if source in later.sources or source in later.refs.values()
        ]
        if source is output:
            readers.append("the output of the graph")
        if any(other.carries in source.tags for other in order):
            readers.append("the next call")
        if readers:
            raise rejected(readers[0], keys[position])
        if source.tags and source.kind != "input":
            note_overwritten_tag(keys[position], "inplace=True", source.tags[0])


def _check_parts(control: Control, key: str) -> None:
    """Raise if a part of a control node overwrites the stream, which the node reads again."""
    parts = control.parts()
    for name, reader in control.parts_read_again().items():
        if writes_into_input(parts[name]):
            raise rejected(reader, f"{key}.{name}")


def _is_random(module: nn.Module) -> bool:
    return any("dropout" in type(inner).__name__.lower() for inner in module.modules())
