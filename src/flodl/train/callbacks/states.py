"""Assign the saved states of hooks to the hooks of this program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

# Each version of Python has its own bytecode.
_CODE = re.compile(r" #[0-9a-f]{8}\b")


class Identity(NamedTuple):
    """The class of a hook, a hash of the settings it was created with, and the metric it watches; "" for what
    is unknown."""

    kind: str
    settings: str = ""
    metric: str = ""


def settings_hash(settings: Any) -> str:
    """Return a hash of the description of a hook, without the hashes of its code.

    >>> settings_hash("Mine(patience=2) #0123abcd") == settings_hash("Mine(patience=2) #ffffffff")
    True
    """
    return sha256(_CODE.sub("", repr(settings)).encode()).hexdigest()[:16]


def assign(own: Sequence[Identity], saved: Sequence[Identity]) -> tuple[dict[int, int], list[str]]:
    """Return the saved index for each own index, and the classes whose states had to be assigned in order.

    Hooks of a class are assigned by their settings, then by their metrics, then in order. The order is a
    guess only if several are left whose settings are known.

    >>> one, two = Identity("Stop", "a"), Identity("Stop", "b")
    >>> assign([one, two], [two, one])
    ({0: 1, 1: 0}, [])
    >>> assign([Identity("Stop", "c"), Identity("Stop", "d")], [two, one])
    ({0: 0, 1: 1}, ['Stop'])
    >>> assign([Identity("Stop", "c", "f1")], [two, Identity("Stop", "d", "f1")])
    ({0: 1}, [])
    """
    found: dict[int, int] = {}
    free, guessed = list(range(len(saved))), []
    for name in ("settings", "metric"):
        for index, one in enumerate(own):
            known = getattr(one, name)
            alike = (at for at in free if saved[at].kind == one.kind and getattr(saved[at], name) == known)
            same = next(alike, None) if known and index not in found else None
            if same is not None:
                found[index] = same
                free.remove(same)
    for index, one in enumerate(own):
        left = [at for at in free if saved[at].kind == one.kind]
        if index in found or not left:
            continue
        if len(left) > 1 and saved[left[0]].settings:
            guessed.append(one.kind)
        found[index] = left[0]
        free.remove(left[0])
    return found, list(dict.fromkeys(guessed))
