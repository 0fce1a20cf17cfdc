"""The hooks of torch that the user registered: on modules, parameters and the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from flodl.core.contents import Contents, is_user_file
from flodl.core.contents.origin import is_user_class

_MAX_DESCRIBED = 200
_OF_MODULES = {
    "forward_pre_hooks": "_forward_pre_hooks",
    "forward_hooks": "_forward_hooks",
    "backward_pre_hooks": "_backward_pre_hooks",
    "backward_hooks": "_backward_hooks",
}
_OF_PARAMETERS = {
    "hooks": "_backward_hooks",
    "post_accumulate_grad_hooks": "_post_accumulate_grad_hooks",
}
_OF_OPTIMIZERS = {
    "step_pre_hooks": "_optimizer_step_pre_hooks",
    "step_post_hooks": "_optimizer_step_post_hooks",
}


def describe_torch_hooks(model: nn.Module, optimizer: Optimizer, known: Mapping[int, str]) -> dict[str, Any]:
    """Describe the hooks of the user in the order of their calls, by path; those of libraries are left out.

    >>> import torch
    >>> def double(module, inputs, output):
    ...     return output * 2
    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> handle = model[0].register_forward_hook(double)
    >>> describe_torch_hooks(model, torch.optim.SGD(model.parameters()), {})
    {'model.0.forward_hooks': ['double #...']}
    """
    owners: list[tuple[str, Any, Mapping[str, str]]] = [
        (f"model.{path}".rstrip("."), module, _OF_MODULES) for path, module in model.named_modules()
    ]
    owners += [(f"model.{path}", one, _OF_PARAMETERS) for path, one in model.named_parameters()]
    owners.append(("optimizer", optimizer, _OF_OPTIMIZERS))
    found: dict[str, Any] = {}
    num_more = 0
    for path, owner, registries in owners:
        for name, registry in registries.items():
            hooks = [hook for hook in _registered(owner, registry) if _is_of_user(hook)]
            if hooks and len(found) < _MAX_DESCRIBED:
                found[f"{path}.{name}"] = [Contents(known).of(hook) for hook in hooks]
            num_more += len(hooks) if len(found) >= _MAX_DESCRIBED else 0
    return {**found, "…": num_more} if num_more else found


def _registered(owner: Any, registry: str) -> Iterable[Any]:
    hooks = getattr(owner, registry, None)
    return list(hooks.values()) if isinstance(hooks, Mapping) else ()


def _is_of_user(hook: Any) -> bool:
    """Return whether a function, or the class of an object, is code of the user."""
    while isinstance(hook, partial | MethodType):
        hook = hook.func if isinstance(hook, partial) else hook.__func__
    if not isinstance(hook, FunctionType):
        return is_user_class(type(hook))
    while "__wrapped__" in vars(hook) and not is_user_file(hook.__code__.co_filename):
        inner = vars(hook)["__wrapped__"]
        if not isinstance(inner, FunctionType):
            return False
        hook = inner
    return is_user_file(hook.__code__.co_filename)
