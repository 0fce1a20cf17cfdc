"""Process groups: one per generation and set of members, formed when it is first needed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import ProcessGroupGloo, Store

from flodl.core.errors import DistributedError

from .errors import ReductionFailed
from .links import GlooLink, Link
from .store import LOOPBACK, cancel_key

# A group that was not used in this number of windows is closed. All its members use it in the same windows,
# so all of them close it.
KEPT_WINDOWS = 32
LONGEST_PAUSE_S = 0.02


@dataclass
class Group:
    """The link between some members, and the window in which it was last used."""

    link: Link
    last_window: int


class Groups:
    """Finds or forms the process group of a reduction.

    A generation names all ranks, but the members of a reduction may be fewer: late ranks keep training.
    So a group is formed by those that need it, in the reduction that first needs it.
    """

    def __init__(self, card: dict[str, Any], *, host: str = LOOPBACK) -> None:
        self.generation = -1
        # What this rank tells the others about itself: all members need the same layout and settings.
        self.card = card
        self._host = host
        self._store: Store | None = None
        self._rank = -1
        self._timeout_s = 0.0
        self._groups: dict[tuple[int, ...], Group] = {}
        self._gloo_device: Any = None
        self._is_cancelled = False

    def rebuild(self, store: Store | None, generation: int, rank: int, timeout_s: float) -> None:
        """Close the groups of the last generation."""
        self.close()
        self.generation, self._store, self._rank = generation, store, rank
        self._timeout_s = timeout_s
        self._is_cancelled = False

    def close(self) -> None:
        """Close all groups, and free a call that waits for members."""
        self._is_cancelled = True
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.link.close()

    def find(self, members: tuple[int, ...], window: int, deadline: float) -> Link:
        """Return the link between these members; blocks until all of them ask for it."""
        for old in [
            each for each, group in self._groups.items() if group.last_window < window - KEPT_WINDOWS
        ]:
            self._groups.pop(old).link.close()
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = Group(self._form(members, window, deadline), window)
        group.last_window = window
        return group.link

    def _form(self, members: tuple[int, ...], window: int, deadline: float) -> Link:
        if self._store is None:
            raise DistributedError("rebuild() was not called: there is no store through which ranks meet.")
        deadline = min(deadline, time.monotonic() + self._timeout_s)
        prefix = f"g{self.generation}/w{window}/{'-'.join(map(str, members))}"
        cards = self._meet(self._store, prefix, members, deadline)
        for rank, card in zip(members, cards):
            _check_card(rank, card, self._rank, self.card)
        if self._gloo_device is None:
            self._gloo_device = ProcessGroupGloo.create_device(hostname=self._host, lazy_init=False)
        index = members.index(self._rank)
        return GlooLink(self._store, f"{prefix}/gloo", index, len(members), self._gloo_device, deadline)

    def _meet(
        self, store: Store, prefix: str, members: tuple[int, ...], deadline: float
    ) -> list[dict[str, Any]]:
        """Wait until all members have come, and return what they say about themselves."""
        store.set(f"{prefix}/{self._rank}", json.dumps(self.card))
        keys = [f"{prefix}/{rank}" for rank in members]
        pause_s = 0.0005
        # `Store.wait` prints a warning at each timeout, and nothing else can end it.
        while not store.check(keys):
            if self._is_cancelled or store.check([cancel_key(self.generation)]):
                raise ReductionFailed("the generation was canceled, because a member is lost.")
            if time.monotonic() > deadline:
                missing = tuple(rank for rank, key in zip(members, keys) if not store.check([key]))
                raise ReductionFailed(f"ranks {list(missing)} did not come in time.", ranks=missing)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        return [json.loads(store.get(key)) for key in keys]


def _check_card(rank: int, card: dict[str, Any], own_rank: int, own: dict[str, Any]) -> None:
    for key, value in own.items():
        if key != "device" and card.get(key) != value:
            raise DistributedError(
                f"rank {rank} has {key} {card.get(key)!r}, and rank {own_rank} has {value!r}. "
                "All ranks need the same model and the same settings."
            )
