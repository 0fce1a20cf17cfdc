"""Replace the tensors of a model, and keep shared ones shared."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from flodl.core import HFError


def assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers by name; every module that shares one gets the same new one.

    The model may be on the meta device. All names and shapes are checked before anything is replaced.

    >>> import torch
    >>> first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> second.weight = first.weight
    >>> assign(nn.Sequential(first, second), {"0.weight": torch.ones(2, 2)})
    >>> second.weight is first.weight
    True
    """
    owned = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if name not in owned:
            raise HFError(f"the model has no parameter {name!r}.")
        if owned[name].shape != tensor.shape:
            raise HFError(
                f"{name!r} has shape {tuple(owned[name].shape)} in the model, "
                f"but {tuple(tensor.shape)} in the checkpoint."
            )
    replaced: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        old = owned[name]
        is_parameter = isinstance(old, nn.Parameter)
        replaced[id(old)] = nn.Parameter(tensor, old.requires_grad) if is_parameter else tensor
    for module in model.modules():
        for slots in (module._parameters, module._buffers):
            for slot, value in slots.items():
                if id(value) in replaced:
                    slots[slot] = replaced[id(value)]  # type: ignore[assignment]
