"""Guard for what neither a replay nor a guard of torch.compile notices: modules, hooks, tensors, flags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer

from ..device.tensors import data_ptr
from ..device.torch_flags import cudnn_allows_tf32, matmul_precision

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class ThoroughGuard:
    """The modules, hooks, tensors and flags as they were when the step was recorded or compiled.

    Neither a replay nor a guard of torch.compile notices a module that was swapped, a hook that was added
    later or a flag of torch that was changed. The check takes too long for every step, so it runs every few
    hundred steps. Compiled code that Python calls looks up its tensors itself (`with_tensors=False`). Pass
    the `optimizer` if its update was recorded too, to check the data pointers of its state.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> guard = ThoroughGuard(model)
    >>> model[1] = nn.GELU()
    >>> guard.what_changed()
    "the module '1' changed"
    """

    def __init__(
        self, model: nn.Module, *, with_tensors: bool = True, optimizer: Optimizer | None = None
    ) -> None:
        self._model = model
        self._with_tensors = with_tensors
        self._state: dict[Tensor, Any] = {} if optimizer is None else optimizer.state
        # State for parameters that are added later is not in any recording yet.
        self._kept = [
            (parameter, key)
            for parameter, state in self._state.items()
            for key, value in state.items()
            if isinstance(value, Tensor)
        ]
        self._modules = list(model.modules())
        self._marks = self._marks_now()
        self._parts = self._parts_now()

    def what_changed(self) -> str | None:
        """Return the first part that differs, or None."""
        if self._marks_now() == self._marks:
            return None
        now = self._parts_now()
        for part in (*self._parts, *now):
            if self._parts.get(part) != now.get(part):
                kind, name = part
                return f"the {kind} '{name}' changed"
        return None

    def _marks_now(self) -> list[object]:
        """Return everything without names, which take most of the time (0.6 ms for 120 modules)."""
        marks: list[object] = [value for _, value in _switches()]
        for module in self._modules:
            marks.extend(map(id, module._modules.values()))
            for kind in _HOOKS:
                marks.extend(getattr(module, kind))
            if self._with_tensors:
                for parameter in module._parameters.values():
                    if parameter is not None:
                        marks.extend(_mark(parameter))
                marks.extend(data_ptr(buffer) for buffer in module._buffers.values() if buffer is not None)
        marks.extend(pointer for _, pointer in self._optimizer_now())
        return marks

    def _parts_now(self) -> dict[tuple[str, str], object]:
        parts = {**dict(_parts(self._model)), **dict(_switches())}
        if self._with_tensors:
            parts.update(_tensors(self._model))
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        for (parameter, key), pointer in self._optimizer_now():
            name = names.get(id(parameter), "a parameter outside the model")
            parts["state of the optimizer for", f"{name} ({key})"] = pointer
        return parts

    def _optimizer_now(self) -> Iterator[tuple[tuple[Tensor, str], int | None]]:
        """Yield the data pointers of the optimizer's state; None for state that is gone."""
        for parameter, key in self._kept:
            kept = self._state.get(parameter, {}).get(key)
            yield (parameter, key), data_ptr(kept) if isinstance(kept, Tensor) else None


def _parts(model: nn.Module) -> Iterator[tuple[tuple[str, str], object]]:
    for name, module in model.named_modules():
        yield ("module", name), id(module)
        hooks = tuple(key for kind in _HOOKS for key in getattr(module, kind))
        if hooks:
            yield ("hook of", name), hooks


def _mark(parameter: Tensor) -> tuple[object, ...]:
    """Return the identity, data pointer and gradient hooks of a parameter."""
    hooks = (key for kind in _HOOKS_OF_TENSORS for key in getattr(parameter, kind) or ())
    return id(parameter), data_ptr(parameter), *hooks


def _switches() -> Iterator[tuple[tuple[str, str], object]]:
    matmul, cudnn = torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn)
    exact = matmul_precision() or getattr(matmul, "fp32_precision", None)
    yield ("setting", "float32_matmul_precision"), exact
    yield ("setting", "use_deterministic_algorithms"), torch.are_deterministic_algorithms_enabled()
    for kind in _HOOKS:
        yield ("hooks of all modules", kind.strip("_")), tuple(getattr(torch_module, f"_global{kind}"))
    may_round = cudnn_allows_tf32()
    yield ("setting", "cudnn.allow_tf32"), cudnn.conv.fp32_precision if may_round is None else may_round
    for name in ("benchmark", "deterministic"):
        yield ("setting", f"cudnn.{name}"), getattr(cudnn, name)


def _tensors(model: nn.Module) -> Iterator[tuple[tuple[str, str], object]]:
    for name, parameter in model.named_parameters():
        yield ("parameter", name), _mark(parameter)
    for name, buffer in model.named_buffers():
        yield ("buffer", name), data_ptr(buffer)
