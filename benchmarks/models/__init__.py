"""The suite: ten reference models and one that halts by its data, each by hand, as a graph, some in JAX."""

from .suite import SUITE, TIER_2, Batches, Reference, same_weights, second_tier, small_suite

__all__ = ["SUITE", "TIER_2", "Batches", "Reference", "same_weights", "second_tier", "small_suite"]
