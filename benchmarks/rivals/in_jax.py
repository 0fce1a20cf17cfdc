"""JAX: the whole step as one jitted program over donated buffers, with optax's Adam."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from models import Batches, Reference

from .runner import Runner, Unavailable

# By default, JAX reserves most of the device memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    missing: str | None = f"{error.name} is not installed"
else:
    missing = None
    # torch computes float32 matmuls in float32 by default; JAX does not.
    jax.config.update("jax_default_matmul_precision", "highest")


class Jax(Runner):
    def __init__(self, reference: Reference, batches: Batches, device: str) -> None:
        super().__init__()
        if missing:
            raise Unavailable(missing)
        if reference.in_jax is None:
            raise Unavailable("no JAX version of this model")
        try:
            self.device = jax.devices("cpu" if device == "cpu" else "gpu")[0]
        except RuntimeError as error:
            raise Unavailable(f"JAX finds no such device: {error}") from None
        with jax.default_device(self.device):
            self._set_up(reference, batches, device)

    def _set_up(self, reference: Reference, batches: Batches, device: str) -> None:
        self.batches = [(_array(x), _array(y)) for x, y in batches]
        self.weights = {name: _array(value) for name, value in reference.module(device).state_dict().items()}
        optimizer = optax.adam(reference.lr)
        self.state = optimizer.init(self.weights)
        forward, loss_of = reference.in_jax(), _squared if reference.loss is F.mse_loss else _over_tokens

        def step(weights: Any, state: Any, total: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
            loss, grads = jax.value_and_grad(lambda weights: loss_of(forward(weights, x), y))(weights)
            updates, state = optimizer.update(grads, state, weights)
            return optax.apply_updates(weights, updates), state, total + loss

        self.step = jax.jit(step, donate_argnums=(0, 1, 2))

    def train(self) -> float:
        total = jnp.zeros((), device=self.device)
        for x, y in self.batches:
            self.weights, self.state, total = self.step(self.weights, self.state, total, x, y)
        return float(total) / len(self.batches)

    def turn(self, epochs: int) -> list[float]:
        taken = []
        for _ in range(epochs):
            jax.block_until_ready(self.weights)
            started = self.clock()
            self.epoch()
            jax.block_until_ready(self.weights)
            taken.append(self.clock() - started)
        return taken


def _array(tensor: torch.Tensor) -> Any:
    return jnp.asarray(tensor.detach().cpu().numpy())


def _squared(predicted: Any, wanted: Any) -> Any:
    return jnp.square(predicted - wanted).mean()


def _over_tokens(logits: Any, targets: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
