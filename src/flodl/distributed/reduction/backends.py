"""Which backend the members of a reduction use, and why."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass

import torch
from torch import distributed

from flodl.core.errors import DistributedError

from .flat_state import FlatState

BACKENDS = ("auto", "gloo", "nccl", "host")


@dataclass
class Card:
    """What a member reports about itself before a group is formed."""

    layout: str
    num_parameters: int
    wire: str
    outer: str
    backend: str
    device: str
    gpu: str = ""
    nccl_error: str = ""

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Card:
        return cls(**json.loads(text))

    def check(self, own_rank: int, rank: int, other: Card) -> None:
        """Raise an error if another member has a different model or different settings."""
        for name, what in [
            ("num_parameters", "parameters"),
            ("layout", "a layout of the model (hash of shapes and dtypes)"),
            ("wire", "the wire format"),
            ("outer", "the outer optimizer"),
            ("backend", "the backend"),
        ]:
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                raise DistributedError(
                    f"ranks cannot average different models or settings: rank {own_rank} has {what} {mine}, "
                    f"and rank {rank} has {its}. Start all ranks with the same model and settings."
                )


def card_of(state: FlatState, *, backend: str, wire: str, outer: str) -> Card:
    """Return the card of a rank; checks that its device fits the backend."""
    if backend not in BACKENDS:
        raise DistributedError(f"backend is {backend!r}. Expected one of {', '.join(BACKENDS)}.")
    kind = state.device.type
    if backend == "nccl" and kind != "cuda":
        raise DistributedError(f"the backend nccl needs a CUDA device, and the model is on {state.device}.")
    if backend == "gloo" and kind != "cpu":
        raise DistributedError(
            f"the backend gloo needs a model on the CPU, and it is on {state.device}. "
            "Use 'host', which copies to the CPU, or 'auto'."
        )
    gpu, nccl_error = "", f"the model is on {kind}"
    if kind == "cuda":
        gpu = f"{platform.node()}/{torch.cuda.get_device_properties(state.device).uuid}"
        nccl_error = "" if distributed.is_nccl_available() else "this build of torch has no NCCL"
    device = str(state.device)
    return Card(state.layout, state.num_parameters, wire, outer, backend, device, gpu, nccl_error)


def choose(members: tuple[int, ...], cards: list[Card]) -> tuple[str, str]:
    """Return the backend for these members, and why; all of them get the same answer.

    >>> cpu = Card("f00", 10, "fp32", "Mean()", "auto", "cpu", nccl_error="the model is on cpu")
    >>> choose((0, 1), [cpu, cpu])
    ('gloo', 'all ranks are on the CPU')
    """
    asked = cards[0].backend
    if all(card.device == "cpu" for card in cards):
        return "gloo", "all ranks are on the CPU"
    if asked == "host":
        return "host", "it was asked for"
    obstacle = _nccl_obstacle(members, cards)
    if not obstacle:
        return "nccl", "it was asked for" if asked == "nccl" else "each rank has its own GPU"
    if asked == "nccl":
        raise DistributedError(f"ranks cannot use NCCL: {obstacle}. Use backend='host' or 'auto'.")
    return "host", f"NCCL cannot be used: {obstacle}"


def _nccl_obstacle(members: tuple[int, ...], cards: list[Card]) -> str:
    owners: dict[str, int] = {}
    for rank, card in zip(members, cards):
        if card.nccl_error:
            return f"rank {rank}: {card.nccl_error}"
        if card.gpu in owners:
            return f"ranks {owners[card.gpu]} and {rank} share a GPU"
        owners[card.gpu] = rank
    return ""
