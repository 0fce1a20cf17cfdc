"""Labels of a model that have the same name."""

from __future__ import annotations

from collections.abc import Sequence

from flodl.core import HFError, log

_MOST_NAMES = 4


def check_equal_names(labels: Sequence[str], where: str, *, is_own: bool = False) -> None:
    """Warn if several labels have the same name, or raise if the caller named them (`is_own`).

    >>> check_equal_names(["O", "PER", "PER"], "config.json", is_own=True)
    Traceback (most recent call last):
    flodl.core.errors.HFError: config.json: id2label has the same name for several ids: 'PER' (1, 2). Pass ...
    """
    ids: dict[str, list[int]] = {}
    for index, name in enumerate(labels):
        ids.setdefault(name, []).append(index)
    equal = [f"{name!r} ({', '.join(map(str, found))})" for name, found in ids.items() if len(found) > 1]
    if not equal:
        return
    shown = ", ".join(equal[:_MOST_NAMES]) + ", …" * (len(equal) > _MOST_NAMES)
    told = f"{where}: id2label has the same name for several ids: {shown}."
    advice = "Pass labels=[…] with a different name for each id, in the order of the ids."
    if is_own:
        raise HFError(f"{told} {advice}")
    log.warn(
        f"hf: {told} Predictions and metrics cannot tell these labels apart by name, and label2id has only "
        f"one id for each name. {advice}"
    )
