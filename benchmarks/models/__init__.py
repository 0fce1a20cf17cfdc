"""The suite: ten reference models and one with a data-dependent loop, in torch, as graphs, some in JAX."""

from .suite import SUITE, TIER_2, Batches, Reference, same_weights, second_tier, small_suite

__all__ = ["SUITE", "TIER_2", "Batches", "Reference", "same_weights", "second_tier", "small_suite"]
