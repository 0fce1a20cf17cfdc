"""Process groups: one per generation and set of members, formed when it is first needed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import ProcessGroupGloo, Store

from flodl.core.errors import DistributedError

from .backends import Card, choose
from .errors import ReductionFailed
from .links import GlooLink, HostLink, Link, NcclLink
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

    def __init__(self, card: Card, *, host: str = LOOPBACK) -> None:
        self.generation = -1
        self.backend, self.reason = "none", "no group was formed yet"
        # How long the last `find` waited for other members.
        self.wait_ms = 0.0
        # What this rank reports about itself to the other members.
        self.card = card
        self.host = host
        self._store: Store | None = None
        self._rank = -1
        self._timeout_s = 0.0
        self._groups: dict[tuple[int, ...], Group] = {}
        self._gloo_device: Any = None
        self._closed_generation = -1

    def rebuild(self, store: Store | None, generation: int, rank: int, timeout_s: float) -> None:
        """Close the groups of the last generation."""
        self.close(self.generation)
        self.generation, self._store, self._rank = generation, store, rank
        self._timeout_s = timeout_s

    def close(self, generation: int) -> None:
        """Close the groups of this generation, and free a call that waits for members."""
        if generation != self.generation:
            return
        self._closed_generation = generation
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.link.close()

    def find(self, members: tuple[int, ...], window: int, deadline: float) -> Link:
        """Return the link between these members; waits until all of them ask for it."""
        self.wait_ms = 0.0
        if self._closed_generation == self.generation:
            raise ReductionFailed(
                f"generation {self.generation} has failed or was aborted; it needs a rebuild()."
            )
        for each, group in list(self._groups.items()):
            if group.last_window < window - KEPT_WINDOWS:
                self._groups.pop(each).link.close()
        if members not in self._groups:
            link = self._form(members, window, deadline)
            self._groups[members] = Group(link, window)
        group = self._groups[members]
        group.last_window = window
        return group.link

    def _form(self, members: tuple[int, ...], window: int, deadline: float) -> Link:
        store = self._store
        if store is None:
            raise DistributedError("several members need the store of rebuild(), through which they meet.")
        deadline = min(deadline, time.monotonic() + self._timeout_s)
        prefix = f"g{self.generation}/w{window}/{'-'.join(map(str, members))}"
        started = time.monotonic()
        cards = self._meet(store, prefix, members, deadline)
        self.wait_ms = 1000.0 * (time.monotonic() - started)
        for rank, card in zip(members, cards):
            self.card.check(self._rank, rank, card)
        self.backend, self.reason = choose(members, cards)
        index, size = members.index(self._rank), len(members)
        if self.backend == "nccl":
            try:
                return NcclLink(store, f"{prefix}/nccl", index, size, self.card.torch_device)
            except RuntimeError as error:
                # All members see it in the next rendezvous, and use host copies from then on.
                self.card.nccl_error = str(error).splitlines()[0]
                raise
        if self._gloo_device is None:
            gloo: Any = ProcessGroupGloo
            self._gloo_device = gloo.create_device(hostname=self.host, lazy_init=False)
        link = GlooLink(store, f"{prefix}/gloo", index, size, self._gloo_device, deadline)
        return link if self.card.device == "cpu" else HostLink(link)

    def _meet(self, store: Store, prefix: str, members: tuple[int, ...], deadline: float) -> list[Card]:
        """Wait until all members have come, and return what they report about themselves."""
        generation = self.generation
        store.set(f"{prefix}/{self._rank}", self.card.to_json())
        keys = [f"{prefix}/{rank}" for rank in members]
        pause_s = 0.0005
        # `Store.wait` prints a warning at each timeout, and nothing else can end it.
        while not store.check(keys):
            if self._closed_generation >= generation or store.check([cancel_key(generation)]):
                raise ReductionFailed(f"generation {generation} was canceled, because a member is lost.")
            if time.monotonic() > deadline:
                missing = tuple(rank for rank, key in zip(members, keys) if not store.check([key]))
                raise ReductionFailed(f"ranks {list(missing)} did not join in time.", ranks=missing)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        return [Card.from_json(store.get(key)) for key in keys]
