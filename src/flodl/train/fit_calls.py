"""The calls of `fit` that make up a run: a program that is started again makes them again."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FitCalls:
    """Which calls of `fit` returned, so that a restarted program trains only from the interrupted one on.

    >>> calls = FitCalls(returned=[2])
    >>> calls.has_returned(4), calls.has_returned(2)
    (False, True)
    >>> calls.end(2)
    >>> calls.end(4)
    >>> calls.made
    [2, 4]
    """

    # The total of epochs of each call that returned: those of the saved run, then those of this program.
    returned: list[int] = field(default_factory=list)
    # How many calls of this program have returned.
    num_made: int = 0
    # Whether the saved run was loaded in a call that had returned: the interrupted call loads it again, with
    # its data and the random state.
    loads_again: bool = False
    # The differences from the saved run that such a call has reported.
    reported: set[str] = field(default_factory=set)

    @property
    def made(self) -> list[int]:
        """The totals of the calls that have returned in this program."""
        return self.returned[: self.num_made]

    def has_returned(self, epochs: int | None) -> bool:
        """Return whether the next call, with this total, returned before the run was saved."""
        return self.returned[self.num_made : self.num_made + 1] == [epochs]

    def end(self, epochs: int) -> None:
        """Note that a call with this total has returned."""
        if not self.has_returned(epochs):
            self.returned[self.num_made :] = [epochs]
        self.num_made += 1
