"""Where ranks run, as plain data that travels in the environment."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from flodl.core import DistributedError
from flodl.core.environment import launch_text
from flodl.core.integers import is_integer
from flodl.core.paths import suggestion

ENGINES = ("local", "ray", "torchrun")
_DEVICE = re.compile(r"cpu|cuda(:\d{1,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The engine that starts ranks, and how many it starts on which devices.

    >>> Placement(on="ray", ranks=(2, 4)).describe()
    'ray: 2 to 4 ranks'
    """

    on: str = "local"
    # A rank for each; or else, numbers of ranks: the run starts with the first, and grows up to the second.
    # The device is then a CUDA device if there is one.
    devices: tuple[str, ...] = ()
    ranks: tuple[int, int] = (1, 1)
    # The address of a Ray cluster, or of the host of the supervisor with torchrun.
    address: str = ""
    # How often torchrun has started all ranks again.
    num_restarts: int = 0
    # Internal: how the supervisor reaches the ranks of torchrun; with Ray, the process that it ends with.
    session: str = ""

    def __post_init__(self) -> None:
        if self.on not in ENGINES:
            raise DistributedError(f"on={self.on!r}. {suggestion(self.on, ENGINES, known_as='engines')}")
        for device in self.devices:
            check_device(device, on=self.on)
        least, most = self.ranks
        if not is_integer(least, at_least=1) or not is_integer(most, at_least=least):
            raise DistributedError(f"ranks={self.ranks!r}. Expected numbers from 1: (at least, at most).")

    @property
    def start_ranks(self) -> int:
        """The ranks with which a run starts."""
        return len(self.devices) or self.ranks[0]

    @property
    def max_ranks(self) -> int:
        return len(self.devices) or self.ranks[1]

    def describe(self) -> str:
        """Return it in words."""
        if self.devices:
            return f"{self.on}: {', '.join(self.devices)}"
        least, most = self.ranks
        num = f"{least} to {most}" if most > least else str(least)
        return f"{self.on}: {num} rank{'s' if most > 1 else ''}"

    def to_json(self) -> str:
        """Return it as JSON, without what has its default.

        >>> Placement(devices=("cpu", "cpu")).to_json()
        '{"on": "local", "devices": ["cpu", "cpu"]}'
        """
        default = asdict(Placement())
        return json.dumps({name: v for name, v in asdict(self).items() if name == "on" or v != default[name]})

    @classmethod
    def from_json(cls, text: str) -> Placement:
        """Read what `to_json` wrote.

        >>> Placement.from_json('{"on": "rya"}')
        Traceback (most recent call last):
        flodl.core.errors.DistributedError: on='rya'. Did you mean 'ray'?...
        """
        try:
            found: dict[str, Any] = json.loads(text)
            found["devices"] = tuple(found.get("devices", ()))
            found["ranks"] = tuple(found.get("ranks", (1, 1)))
            return cls(**found)
        except (ValueError, TypeError, AttributeError) as error:
            raise DistributedError(
                f"FLODL_LAUNCH={text!r} does not describe where ranks run: {error}. `fdl launch` sets it; "
                "unset it otherwise."
            ) from None


def launched_placement() -> Placement | None:
    """Return where `fdl launch` or torchrun wants ranks to run; None if neither started this program."""
    text = launch_text()
    return Placement.from_json(text) if text else None


def check_device(device: str, *, on: str = "local") -> None:
    """Check the name of a device.

    >>> check_device("gpu:0")
    Traceback (most recent call last):
    flodl.core.errors.DistributedError: the device 'gpu:0' is unknown. Write cpu, cuda or cuda:0.
    >>> check_device("cuda:1", on="ray")
    Traceback (most recent call last):
    flodl.core.errors.DistributedError: the device 'cuda:1' has an index. Ray chooses the GPU: write cuda.
    """
    if not _DEVICE.fullmatch(device):
        raise DistributedError(f"the device {device!r} is unknown. Write cpu, cuda or cuda:0.")
    if on == "ray" and ":" in device:
        raise DistributedError(f"the device {device!r} has an index. Ray chooses the GPU: write cuda.")


def parse_ranks(text: str) -> tuple[int, int]:
    """Read a number of ranks, or a range of numbers.

    >>> parse_ranks("4"), parse_ranks("2:8")
    ((4, 4), (2, 8))
    """
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal() and 1 <= int(least) <= int(most or least)):
        raise DistributedError(
            f"{text!r} is not a number of ranks. Write a number such as 4, or a range such as 2:8."
        )
    return int(least), int(most or least)
