"""Objects that act as an optimizer without being one of torch: they call the step() of one or several."""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from flodl.core.formats import counted, with_article


def wrapper_text(value: object) -> str:
    """Return what is wrong with an optimizer that is not derived from torch's class, or "".

    >>> import torch
    >>> class Lookahead:
    ...     def __init__(self, inner):
    ...         self.inner = inner
    ...     def step(self):
    ...         self.inner.step()
    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> print(wrapper_text(Lookahead(torch.optim.SGD([weight], lr=0.1))))
    the optimizer is a Lookahead, which wraps an SGD in its attribute 'inner' and is not derived from ...
    >>> wrapper_text(torch.optim.SGD([weight], lr=0.1)), wrapper_text([weight])
    ('', '')
    """
    kind = type(value)
    # Modules have zero_grad, and schedulers of torch have an optimizer.
    is_other = isinstance(value, type | Optimizer | Module) or kind.__module__.startswith("torch.optim.")
    # Of the object, which may pass on every attribute.
    if is_other or not callable(getattr(value, "step", None)):
        return ""
    found = _wrapped_by(value)
    if not found and not any(hasattr(value, name) for name in ("zero_grad", "param_groups")):
        return ""
    told, advice = "", "Derive the class from torch.optim.Optimizer"
    if found:
        name, inner = found
        what = with_article(type(inner[0]).__name__) if len(inner) == 1 else counted(len(inner), "optimizer")
        told = f" wraps {what} in its attribute {name!r} and"
        advice += (
            f", or pass the inner one ({name}); what the wrapper adds to its step() then does not run"
            if len(inner) == 1
            else ", or use one TrainStep for each of them"
        )
    return (
        f"the optimizer is {with_article(kind.__name__)}, which{told} is not derived from "
        "torch.optim.Optimizer. An optimizer of torch is expected: its groups and state are read, saved and "
        f"restored. {advice}."
    )


def uninitialized_text(optimizer: Optimizer, *, saves: bool) -> str:
    """Return what is wrong with an optimizer whose class does not call `super().__init__()`, or "".

    One that sets the attributes of torch itself can train, but not be saved.

    >>> import torch
    >>> class Wrapper(Optimizer):
    ...     def __init__(self, inner):
    ...         self.inner = inner
    >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    >>> print(uninitialized_text(Wrapper(inner), saves=False))
    the optimizer Wrapper has no 'param_groups' and no 'state': its __init__ does not call that of ...
    >>> uninitialized_text(inner, saves=True)
    ''
    """
    lost = [f"no {name!r}" for name in ("param_groups", "state") if not hasattr(optimizer, name)]
    what = (
        f"has {' and '.join(lost)}"
        if lost
        else "cannot be saved"
        if saves and _lacks_hooks(optimizer)
        else ""
    )
    if not what:
        return ""
    return (
        f"the optimizer {type(optimizer).__name__} {what}: its __init__ does not call that of "
        "torch.optim.Optimizer. Call super().__init__(params, defaults) there first; a wrapper passes "
        "(inner.param_groups, inner.defaults), and then sets self.param_groups and self.state to those of "
        "the inner optimizer."
    )


def _lacks_hooks(optimizer: Optimizer) -> bool:
    """Return whether the methods of torch that save and load fail, because their hooks are missing."""
    if hasattr(optimizer, "_optimizer_state_dict_pre_hooks"):
        return False
    if type(optimizer).load_state_dict is Optimizer.load_state_dict:
        return True
    try:
        optimizer.state_dict()
    except AttributeError:
        return True
    return False


def _wrapped_by(value: object) -> tuple[str, list[Optimizer]] | None:
    """Return the attribute that has an optimizer, or several of them."""
    for name, held in _own(value).items():
        several = [*held.values()] if isinstance(held, dict) else held
        inner = [*several] if isinstance(several, list | tuple) else [held]
        if inner and all(isinstance(one, Optimizer) for one in inner):
            return name, inner
    return None


def _own(value: object) -> dict[str, Any]:
    return getattr(value, "__dict__", {})
