"""Six of the reference models in JAX, with the weights of the torch models under their torch names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Weights = Mapping[str, jax.Array]
Forward = Callable[[Weights, jax.Array], jax.Array]


def linear(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    middle = x.mean(-1, keepdims=True)
    spread = jnp.square(x - middle).mean(-1, keepdims=True)
    return (x - middle) * jax.lax.rsqrt(spread + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def block(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    return norm(weights, f"{name}.norm", gelu(linear(weights, f"{name}.linear", x)))


def mlp(weights: Weights, x: jax.Array) -> jax.Array:
    for first in (0, 3, 6, 9):
        x = norm(weights, str(first + 2), gelu(linear(weights, str(first), x)))
    return linear(weights, "12", x)


def residual_tower(weights: Weights, x: jax.Array) -> jax.Array:
    depth = sum(name.endswith("linear.weight") for name in weights)
    x = linear(weights, "entry", x)
    for position in range(depth):
        x = x + block(weights, f"blocks.{position}", x)
    return linear(weights, "exit", x)


def gated_routing(weights: Weights, x: jax.Array) -> jax.Array:
    x = gelu(linear(weights, "entry", x))
    shares = jax.nn.softmax(linear(weights, "router", x))
    experts = [block(weights, f"experts.{position}", x) for position in range(shares.shape[-1])]
    return linear(weights, "exit", (jnp.stack(experts, 1) * shares[..., None]).sum(1))


def iterative_refine(turns: int) -> Forward:
    def forward(weights: Weights, x: jax.Array) -> jax.Array:
        x = norm(weights, "norm", gelu(linear(weights, "entry", x)))
        for _ in range(turns):
            x = x + block(weights, "block", x)
        return linear(weights, "exit", x)

    return forward


def transformer(heads: int, depth: int) -> Forward:
    def forward(weights: Weights, tokens: jax.Array) -> jax.Array:
        x = weights["0.weight"][tokens] + weights["1.positions"]
        for position in range(2, 2 + depth):
            x = x + attention(weights, f"{position}.attention.attention", x, heads)
            x = norm(weights, f"{position}.after_attention", x)
            hidden = gelu(linear(weights, f"{position}.feed_forward.0", x))
            x = x + linear(weights, f"{position}.feed_forward.2", hidden)
            x = norm(weights, f"{position}.after_feed_forward", x)
        return linear(weights, str(2 + depth), x)

    return forward


def attention(weights: Weights, name: str, x: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    packed = x @ weights[f"{name}.in_proj_weight"].T + weights[f"{name}.in_proj_bias"]
    query, key, value = packed.reshape(batch, length, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * (width // heads) ** -0.5
    mixed = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores), value)
    return linear(weights, f"{name}.out_proj", mixed.reshape(batch, length, width))
