"""The list of rivals, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from models import Batches, Reference

from .runner import Runner


@dataclass(frozen=True)
class Kind:
    """One rival: its label, its module, and whether it is a mode of plain torch."""

    label: str
    place: str
    plain_torch: bool = False
    cuda_only: bool = False

    def build(self, reference: Reference, batches: Batches, device: str) -> Runner:
        """Build the rival without training it."""
        file, name = self.place.split(":")
        made: Callable[..., Runner] = getattr(import_module(f"rivals.{file}"), name)
        return made(reference, batches, device)


RIVALS = {
    "reference": Kind("torch eager", "in_torch:AsReferenced", plain_torch=True),
    "matched": Kind("torch eager, matched", "in_torch:Matched", plain_torch=True),
    "compile": Kind("torch.compile", "in_torch:Compiled", plain_torch=True),
    "reduce_overhead": Kind(
        "compile reduce-overhead", "in_torch:ReduceOverhead", plain_torch=True, cuda_only=True
    ),
    "lightning": Kind("Lightning", "in_lightning:Lightning"),
    "jax": Kind("JAX", "in_jax:Jax"),
    "flodl": Kind("flodl captured", "in_flodl:Flodl"),
    "flodl_compiled": Kind("flodl compiled", "in_flodl:FlodlCompiled"),
}
