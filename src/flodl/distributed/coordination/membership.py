"""Who takes part: numbered generations, published at declared points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flodl.core import DistributedError


@dataclass(frozen=True, slots=True)
class Generation:
    """A published set of members; everyone acts on the last published generation only."""

    number: int
    members: tuple[int, ...]
    added: tuple[int, ...]
    removed: tuple[int, ...]
    reason: str


class Membership:
    """Collects joins and losses, and applies them together when `publish` is called.

    >>> membership = Membership()
    >>> membership.join(0), membership.join(1)
    (None, None)
    >>> membership.members, membership.publish().members
    ((), (0, 1))
    >>> membership.lose(1, "its process ended with code 1")
    >>> membership.join(1)
    >>> generation = membership.publish()
    >>> generation.number, generation.members, generation.reason
    (2, (0, 1), 'rank 1 is lost: its process ended with code 1; rank 1 joins')
    >>> membership.refusal(1, generation=1)
    'rank 1 of generation 1 was replaced in generation 2'
    """

    def __init__(self) -> None:
        self.generation = 0
        # The generation in which each member joined.
        self._since: dict[int, int] = {}
        self._joining: dict[int, str] = {}
        self._gone: dict[int, str] = {}

    @property
    def members(self) -> tuple[int, ...]:
        """The members of the published generation, lost ones included until the next one."""
        return tuple(sorted(self._since))

    @property
    def joining(self) -> tuple[int, ...]:
        return tuple(sorted(self._joining))

    @property
    def has_joining(self) -> bool:
        return bool(self._joining)

    def is_live(self, rank: int) -> bool:
        """Return whether a rank is a member that is not lost."""
        return rank in self._since and rank not in self._gone

    def is_known(self, rank: int) -> bool:
        """Return whether a rank is a member that is not lost, or about to be one."""
        return rank in self._joining or self.is_live(rank)

    def join(self, rank: int) -> None:
        """Admit a rank at the next declared point; a lost rank may join again."""
        if self.is_known(rank):
            raise DistributedError(
                f"rank {rank} is already a member. Report it as lost first, or use another number."
            )
        self._joining[rank] = f"rank {rank} joins"

    def lose(self, rank: int, reason: str) -> None:
        """Remove a rank at the next declared point; from now on, what it reports is refused."""
        self._remove(rank, f"rank {rank} is lost: {reason}")

    def leave(self, rank: int) -> None:
        """Remove a rank that asked to leave at the next declared point."""
        self._remove(rank, f"rank {rank} leaves")

    def _remove(self, rank: int, reason: str) -> None:
        if self._joining.pop(rank, None) is None and rank in self._since:
            self._gone.setdefault(rank, reason)

    def refusal(self, rank: int, *, generation: int) -> str | None:
        """Return why a message of a rank does not count, or None if it does."""
        since = self._since.get(rank)
        if since is None:
            return f"rank {rank} is not a member of generation {self.generation}; it may join again"
        if generation < since:
            return f"rank {rank} of generation {generation} was replaced in generation {since}"
        if generation > self.generation:
            return f"generation {generation} was not published; the last one is {self.generation}"
        if rank in self._gone:
            return f"{self._gone[rank]}; it may join again"
        return None

    def publish(self, *, joins: bool = True, force: bool = False, reason: str = "") -> Generation | None:
        """Apply all changes (without joins if so asked) as a new generation; None if there are none."""
        joining = self._joining if joins else {}
        if not joining and not self._gone and not force:
            return None
        self.generation += 1
        reasons = [*self._gone.values(), *joining.values(), *([reason] if reason else [])]
        removed, added = tuple(sorted(self._gone)), tuple(sorted(joining))
        for rank in removed:
            del self._since[rank]
        for rank in added:
            self._since[rank] = self.generation
        self._gone = {}
        if joins:
            self._joining = {}
        return Generation(self.generation, self.members, added, removed, "; ".join(reasons))

    def state(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "since": [list(pair) for pair in self._since.items()],
            "joining": [list(pair) for pair in self._joining.items()],
            "gone": [list(pair) for pair in self._gone.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.generation = state["generation"]
        self._since, self._joining = dict(state["since"]), dict(state["joining"])
        self._gone = dict(state["gone"])
