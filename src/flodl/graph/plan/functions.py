"""Find modules that functions use, but that are not part of the graph: nothing would train or save them."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from flodl.core import BuildError
from flodl.core.contents import is_user_file
from flodl.core.contents.objects import attributes_of, registered
from flodl.core.contents.origin import is_user_module
from flodl.core.contents.reads import reads_of

Found = tuple[str, nn.Module | nn.Parameter]
# A function that names one of these computes without gradients on purpose.
_WITHOUT_GRADIENT = frozenset({"no_grad", "inference_mode", "detach"})
_MAX_DEPTH = 5


def check_functions(graph: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Raise if a function uses trainable parameters that belong to no model with this graph in it."""
    own = set(graph.parameters())
    for path, function in functions.items():
        for name, value in _Search().found_in(function, ""):
            parameters = [value] if isinstance(value, nn.Parameter) else [*value.parameters()]
            outside = [one for one in parameters if one.requires_grad and one not in own]
            if outside and not _belong_elsewhere(graph, set(outside)):
                raise BuildError(_message(function, name, value, outside), path=path)


class _Search:
    """Follow what functions read, in their bytecode, without calling anything."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def found_in(self, value: Any, name: str, depth: int = 0) -> Iterator[Found]:
        """Yield the modules and parameters that a value is or uses, each with its name."""
        if id(value) in self._seen or depth > _MAX_DEPTH or isinstance(value, type):
            return
        self._seen.add(id(value))
        if isinstance(value, nn.Module | nn.Parameter):
            yield name, value
        elif isinstance(value, functools.partial):
            yield from self.found_in(value.func, name, depth + 1)
            for key, part in [*enumerate(value.args), *value.keywords.items()]:
                yield from self.found_in(part, str(key), depth + 1)
        elif isinstance(value, MethodType):
            yield from self._of_method(value, name, depth)
        elif isinstance(value, FunctionType):
            yield from self._of_function(value, None, depth)
        elif isinstance(value, list | tuple | dict):
            parts = [*value.values()] if isinstance(value, dict) else [*value]
            if all(isinstance(part, nn.Module | nn.Parameter) for part in parts):
                yield from ((name, part) for part in parts)
        elif isinstance(call := inspect.getattr_static(type(value), "__call__", None), FunctionType):
            yield from self._of_function(call, value, depth)

    def _of_method(self, method: MethodType, name: str, depth: int) -> Iterator[Found]:
        owner, function = method.__self__, method.__func__
        if isinstance(owner, nn.Module) and function.__name__ in ("forward", "__call__", "_call_impl"):
            yield name.rpartition(".")[0] or type(owner).__name__, owner
        elif isinstance(function, FunctionType):
            yield from self._of_function(function, owner, depth)

    def _of_function(self, function: FunctionType, owner: Any, depth: int) -> Iterator[Found]:
        code = function.__code__
        if not is_user_file(code.co_filename) or _WITHOUT_GRADIENT.intersection(code.co_names):
            return
        for parameter in inspect.signature(function).parameters.values():
            yield from self.found_in(parameter.default, parameter.name, depth + 1)
        closure = dict(zip(code.co_freevars, function.__closure__ or ()))
        for read in reads_of(code):
            if read.scope == "own":
                root = owner
            elif read.scope == "free" and read.name in closure:
                root = _contents(closure[read.name])
            else:
                root = function.__globals__.get(read.name) if read.scope == "global" else None
            value, name = _follow(root, read.name, read.attributes)
            if value is not None and value is not owner:
                yield from self.found_in(value, name, depth + 1)


def _follow(value: Any, name: str, attributes: tuple[str, ...]) -> tuple[Any, str]:
    """Return the attribute of an attribute of … a value, as far as it is stored, and its dotted name."""
    for attribute in attributes:
        if isinstance(value, ModuleType):
            following = vars(value).get(attribute) if is_user_module(value) else None
        elif isinstance(value, Tensor) or value is None:
            return value, name
        else:
            stored = {**attributes_of(value), **(registered(value) if isinstance(value, nn.Module) else {})}
            following = stored.get(attribute)
            if attribute not in stored:
                following = _method(value, attribute)
        value, name = following, f"{name}.{attribute}"
    return value, name


def _method(value: Any, name: str) -> MethodType | None:
    defined = inspect.getattr_static(type(value), name, None)
    return MethodType(defined, value) if isinstance(defined, FunctionType) else None


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _belong_elsewhere(graph: nn.Module, parameters: set[nn.Parameter]) -> bool:
    """Return whether a module has both the graph and the parameters, or an optimizer has the parameters.

    This visits all objects of the process, but only if a function uses parameters outside the graph.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # frozen objects are not listed
    try:
        objects = [one for one in gc.get_objects() if issubclass(type(one), nn.Module | Optimizer)]
    finally:
        if is_frozen:
            gc.freeze()
    optimizers = [one for one in objects if isinstance(one, Optimizer)]
    groups = [group for one in optimizers for group in getattr(one, "param_groups", ())]
    if parameters.issubset(parameter for group in groups for parameter in group["params"]):
        return True
    modules = [one for one in objects if isinstance(one, nn.Module) and "_modules" in vars(one)]
    around = [one for one in modules if any(part is graph for part in one.modules())]
    return any(parameters.issubset(one.parameters()) for one in around)


def _message(function: Any, name: str, value: nn.Module | nn.Parameter, outside: list[nn.Parameter]) -> str:
    count = sum(one.numel() for one in outside if not is_lazy(one))
    what = type(value).__name__ if isinstance(value, nn.Module) else "parameter"
    fix = "Write a small nn.Module that contains it."
    if isinstance(function, MethodType) and function.__self__ is value:
        fix = "Pass the module itself, not its method."
    elif isinstance(value, nn.Module):
        fix = (
            f"Make it a node, through({name}), followed by the function, or write a small nn.Module that "
            "contains it."
        )
    return (
        f"the function uses the {what} {name!r} ({count:,} trainable parameters), which is not part of the "
        f"graph, so it is neither trained nor saved with it. {fix} If it should stay as it is, freeze it: "
        "requires_grad_(False)."
    )
