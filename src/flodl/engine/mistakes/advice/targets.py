"""Advice for targets and indices that a loss or an embedding does not take."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ..batch_names import Named

_TWO_SIZES = r"size \(torch\.Size\(\[([\d, ]*)\]\)\)"
_MESSAGES = {
    r"multi-target not supported": (
        "Class indices have one dimension: pass y.squeeze(1), or y.argmax(1) for one-hot targets."
    ),
    r"Expected floating point type for target with class probabilities": (
        "cross_entropy takes class indices, or probabilities as floats. For one-hot targets, pass "
        "y.argmax(1) or y.float()."
    ),
    r"Expected target size \[(\d+), \d+\], got \[\1, \d+\]": (
        "cross_entropy takes scores [N, classes, T] for targets [N, T]. If the classes are the last "
        "dimension of the scores, pass scores.transpose(1, 2)."
    ),
    r"device-side assert": (
        "An index is out of range: class indices must be below the number of classes (the model's outputs), "
        "and the indices of an embedding below its number of rows. This process can no longer use the "
        "device. Start the program again on the CPU, with device='cpu', to see which index it is."
    ),
    r"all elements of input should be between 0 and 1": (
        "binary_cross_entropy takes probabilities. For logits, such as the output of a linear layer, use "
        "binary_cross_entropy_with_logits or nn.BCEWithLogitsLoss; check that the scores are not NaN."
    ),
}


def advice_for_targets(told: str, named: Named) -> str:
    """Return what to change, or "" if the message is not about targets or indices.

    >>> advice_for_targets("Target -1 is out of bounds.", [])
    'Class indices must be at least 0, but this one is -1. If -1 marks targets that do not count, pass ...'
    """
    for pattern, advice in _MESSAGES.items():
        if re.search(pattern, told):
            return advice
    if weight := re.search(r"defined either for all (\d+) classes .* of shape: \[([\d, ]*)\]", told):
        return (
            f"The scores have {weight[1]} classes (dimension 1), and the weight of the loss has shape "
            f"[{weight[2]}]. Give it one value for each class: shape [{weight[1]}]."
        )
    if re.search(r"all elements of target should be between 0 and 1", told):
        return _outside_0_to_1(named)
    if below := re.search(r"Target (-\d+) is out of bounds", told):
        index = below[1]
        return (
            f"Class indices must be at least 0, but this one is {index}. If {index} marks targets that do "
            f"not count, pass ignore_index={index} to the loss; if the labels start at {index}, such as -1 "
            "and 1, map them to 0, 1, …."
        )
    if re.search(r"Target \d+ is out of bounds", told):
        return "Class indices start at 0 and must be less than the number of classes (the model's outputs)."
    if "index out of range in self" in told:
        return f"An index must be at least 0 and below the number of rows.{_range_of_indices(named)}"
    if "Subtraction, the `-` operator, with" in told and (bools := _names_of_bools(named)):
        return f"The loss needs numbers, but {bools[0]} is bool: pass {bools[0]}.float()."
    return _missing_dimension(told)


def _names_of_bools(named: Named) -> list[str]:
    return [name for name, leaf in named if leaf.dtype == torch.bool]


def _outside_0_to_1(named: Named) -> str:
    found = ""
    if named and (values := _range(named[-1][1])) and (values[0] < 0 or values[1] > 1):
        found = f" {named[-1][0]} has values from {values[0]:g} to {values[1]:g}."
    return (
        f"binary_cross_entropy takes targets from 0 to 1.{found} Map labels of -1 and 1 to 0 and 1; for more "
        "than two classes, use cross_entropy."
    )


def _range_of_indices(named: Named) -> str:
    ranges = [
        f"those of {name} are {found[0]} to {found[1]}"
        for name, leaf in named
        if not leaf.is_floating_point() and (found := _range(leaf))
    ]
    return f" In this batch, {', '.join(ranges)}." if ranges else ""


def _range(leaf: Tensor) -> tuple[float, float] | None:
    """Return the smallest and the largest value, where they can be read."""
    if leaf.is_meta or not leaf.numel() or leaf.is_complex():
        return None
    low, high = leaf.aminmax()
    return low.item(), high.item()


def _missing_dimension(told: str) -> str:
    """Return the advice for an output [n, 1] and a target [n], or the other way round; else ""."""
    sizes = [text.split(", ") for text in re.findall(_TWO_SIZES, told)]
    if len(sizes) != 2 or sizes[0] == sizes[1]:
        return ""
    target, output = sizes
    if [*target, "1"] == output:
        return "Give the target the last dimension of the output: y.unsqueeze(-1)."
    if target == [*output, "1"]:
        return "Remove the last dimension of the target: y.squeeze(-1)."
    if len(target) == 1 and len(output) == 2 and target[0] == output[0]:
        return (
            "If y has class ids, pass integers, y.long(), to cross_entropy; a transformers model treats "
            f"float labels as multi-label. Targets of binary_cross_entropy have {output[1]} values for "
            "each sample."
        )
    return ""
