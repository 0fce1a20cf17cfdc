"""What the traceback of an error tells: the calls, and the modules of the model among them."""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch import nn


def frames_of(error: BaseException) -> list[FrameType]:
    """Return the frames that an error passed through, innermost first."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames[::-1]


def raising_module(error: BaseException, model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the path of the innermost module of the model that an error passed through, and the module.

    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> try:
    ...     model(None)
    ... except TypeError as error:
    ...     raising_module(error, model)
    ('0', Linear(in_features=2, out_features=1, bias=True))
    """
    paths = {id(module): (path, module) for path, module in model.named_modules()}
    found = (paths.get(id(frame.f_locals.get("self"))) for frame in frames_of(error))
    return next((one for one in found if one is not None), None)


def arguments_of(error: BaseException, model: nn.Module, *, innermost: bool = False) -> list[Any]:
    """Return what a module of the model was called with, if the error came from it.

    This is the outermost call, or with `innermost` the innermost one.
    """
    modules = {*map(id, model.modules())}
    frames = frames_of(error)
    for frame in frames if innermost else reversed(frames):
        seen = frame.f_locals
        if frame.f_code.co_name == "_call_impl" and id(seen.get("self")) in modules:
            return [*seen.get("args", ()), *seen.get("kwargs", {}).values()]
    return []
