"""Notes and errors about chains that are valid, but hardly what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from flodl.core import BuildError, log

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
            "note: the %d %s of %s are one module, so they share their weights and are always equal. Create "
            "one for each: [make() for _ in range(%d)].",
            len(targets),
            plural,
            method,
            len(targets),
        )


def check_in_place(order: list[Draft], keys: list[str], output: Draft) -> None:
    """Raise if a module overwrites a value that is read later; log if the value is tagged."""
    for position, draft in enumerate(order):
        if draft.kind != "call" or not _writes_into_input(draft.target):
            continue
        source = draft.sources[0]
        readers = [
            repr(key)
            for later, key in zip(order[position + 1 :], keys[position + 1 :])
            if source in later.sources or source in later.refs.values()
        ]
        if readers or source is output:
            reader = readers[0] if readers else "the output of the graph"
            raise BuildError(
                f"the module writes into its input (inplace=True), which is also read by {reader}, after it: "
                "that would see the overwritten value. Use inplace=False.",
                path=keys[position],
            )
        if source.tags and source.kind != "input":
            log.warn(
                "note: '%s' writes into its input (inplace=True), so tagged('%s') returns the overwritten "
                "value. Use inplace=False to read the value before it.",
                keys[position],
                source.tags[0],
            )


def _writes_into_input(target: Any) -> bool:
    """Return whether a module of torch overwrites its input; a Sequential does if its first module does."""
    if type(target) is nn.Sequential:
        changing = (module for module in target if type(module) is not nn.Identity)
        return _writes_into_input(next(changing, None))
    is_of_torch = isinstance(target, nn.Module) and type(target).__module__.startswith("torch.nn.")
    return is_of_torch and getattr(target, "inplace", False) is True


def _is_random(module: nn.Module) -> bool:
    return any("dropout" in type(inner).__name__.lower() for inner in module.modules())
