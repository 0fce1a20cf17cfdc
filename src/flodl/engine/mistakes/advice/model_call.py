"""Advice for a model, or the packing of sequences in it, that was called with the wrong arguments."""

from __future__ import annotations

import inspect
import re

from torch import Tensor, nn

from .frames import frames_of

_WRONG_CALL = r"^([\w.<>]+)\(\) (missing|takes|got) "
_EMPTY_SEQUENCE = r"Length of all samples has to be greater than 0"
_MOST_SAMPLES = 5


def advice_for_call(told: str, model: nn.Module) -> str:
    """Return what the model takes, if it was called with other arguments; else "".

    >>> advice_for_call("Linear.forward() missing 1 required positional argument: 'input'", nn.Linear(2, 1))
    'The model takes (input): call it as model(input).'
    """
    found = re.match(_WRONG_CALL, told)
    if found is None or found[1] != getattr(type(model).forward, "__qualname__", None):
        return ""
    parameters = [*inspect.signature(model.forward).parameters.values()]
    required = [
        f"{one.name}={one.name}" if one.kind is one.KEYWORD_ONLY else one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    taken = ", ".join(str(one).partition(":")[0] for one in parameters)
    return f"The model takes ({taken}): call it as model({', '.join(required)})."


def advice_for_lengths(told: str, error: Exception) -> str:
    """Return which samples have no elements, if sequences of length 0 were packed; else "".

    >>> told = "Length of all samples has to be greater than 0, but found an element that is <= 0"
    >>> advice_for_lengths(told, RuntimeError(told))
    'Leave samples without elements out of the data, or pad them to a length of 1.'
    """
    if re.search(_EMPTY_SEQUENCE, told) is None:
        return ""
    advice = "Leave samples without elements out of the data, or pad them to a length of 1."
    if not (samples := _empty_samples(error)):
        return advice
    shown = ", ".join(map(str, samples[:_MOST_SAMPLES])) + ", …" * (len(samples) > _MOST_SAMPLES)
    which = f"Samples {shown} of this batch have" if len(samples) > 1 else f"Sample {shown} of this batch has"
    return f"{which} length 0. {advice}"


def _empty_samples(error: Exception) -> list[int]:
    """Return the samples of length 0 that `pack_padded_sequence` got; it may have sorted them."""
    frames = (frame for frame in frames_of(error) if frame.f_code.co_name == "pack_padded_sequence")
    seen = next((frame.f_locals for frame in frames), {})
    lengths, order = seen.get("lengths"), seen.get("sorted_indices")
    if not isinstance(lengths, Tensor) or lengths.is_meta:
        return []
    empty = (lengths <= 0).nonzero().flatten()
    found: list[int] = (empty if order is None else order.cpu()[empty]).sort().values.tolist()
    return found
