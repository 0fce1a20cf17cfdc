"""The content of tensors that are plain attributes of a module, which no checkpoint contains."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_MOST = 1 << 20  # values of a larger tensor are compared at this many places


def constant_words(module: nn.Module) -> Iterator[str]:
    """Yield a word for each attribute that is a tensor, or a list, tuple or dict with tensors.

    Tensors that follow from weights do not count: weights are in the file.

    >>> class Scale(nn.Module):
    ...     def __init__(self, factor):
    ...         super().__init__()
    ...         self.factor = torch.tensor(factor)
    >>> [*constant_words(Scale(2.0))] == [*constant_words(Scale(3.0))], [*constant_words(nn.Linear(1, 1))]
    (False, [])
    """
    own = [*module._parameters, *module._buffers]
    found = [
        (place, tensor)
        for name, value in sorted(vars(module).items())
        # Hooks of torch, such as pruning, compute `weight` from `weight_orig`.
        if not name.startswith("_") and not any(saved.startswith(f"{name}_") for saved in own)
        for place, tensor in _tensors(value, name, set())
        if _has_content(tensor)
    ]
    if found:
        weights = {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())}
        for place, tensor in found:
            if _storage(tensor) not in weights:
                yield f"content {place} {_digest(tensor)}"


def _tensors(value: Any, place: str, outer: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, list | tuple | dict) and id(value) not in outer:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _tensors(item, f"{place} {key}", outer | {id(value)})


def _has_content(tensor: Tensor) -> bool:
    is_plain = type(tensor) is Tensor and tensor.layout == torch.strided and not tensor.is_meta
    return is_plain and not tensor.requires_grad and not tensor.is_quantized


def _storage(tensor: Tensor) -> object:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # it has none, or no values yet
        return id(tensor)


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().reshape(-1)
    some = flat[:: -(-flat.numel() // _MOST) or 1].resolve_conj().resolve_neg().cpu().contiguous()
    content = some.view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {hashlib.sha256(content).hexdigest()}"
