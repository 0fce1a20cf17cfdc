"""Find modules that functions use, but that are not part of the graph: nothing would train or save them."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from flodl.core import BuildError
from flodl.core.contents import is_user_file
from flodl.core.contents.objects import attributes_of, registered
from flodl.core.contents.origin import is_user_module
from flodl.core.contents.reads import reads_of

Found = tuple[str, nn.Module | nn.Parameter]
_Kind = TypeVar("_Kind")
# A function that names one of these computes without gradients on purpose.
_WITHOUT_GRADIENT = frozenset({"no_grad", "inference_mode", "detach"})
_MAX_DEPTH = 5


def check_functions(graph: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Raise if a function uses trainable parameters that belong to no model with this graph in it."""
    for path, name, value, outside in _uses_outside(graph, functions):
        if not _belong_elsewhere(graph, set(outside)):
            raise BuildError(_message(functions[path], name, value, outside), path=path)


def check_copied_functions(
    graph: nn.Module, original: nn.Module, functions: Mapping[str, Callable[..., Any]]
) -> None:
    """Raise if a function of a copy uses trainable parameters that belong to the original.

    `copy.deepcopy` copies modules, but neither functions nor what they refer to.
    """
    if any(one.is_meta for one in graph.parameters()):
        # A copy that checks shapes does not compute.
        return
    of_original = set(original.parameters())
    for path, name, value, outside in _uses_outside(graph, functions):
        is_left_behind = not of_original.isdisjoint(outside) or (
            _have_module_with(original, set(outside)) and not _have_module_with(graph, set(outside))
        )
        if is_left_behind:
            what = type(value).__name__ if isinstance(value, nn.Module) else "parameter"
            raise BuildError(
                f"this graph is a copy, and its function uses the {what} {name!r} of the original: "
                "copy.deepcopy copies modules, not what functions refer to. The copy would compute with the "
                "weights of the original, and give it the gradients. Write a small nn.Module that contains "
                f"{name!r}, such as Decoder(embedding) for tied weights, and use it instead of the function.",
                path=path,
            )


def _uses_outside(
    graph: nn.Module, functions: Mapping[str, Callable[..., Any]]
) -> Iterator[tuple[str, str, nn.Module | nn.Parameter, list[nn.Parameter]]]:
    """Yield what functions use with trainable parameters that the graph does not have, with their paths."""
    own = set(graph.parameters())
    for path, function in functions.items():
        for name, value in _Search().found_in(function, ""):
            parameters = [value] if isinstance(value, nn.Parameter) else [*value.parameters()]
            outside = [one for one in parameters if one.requires_grad and one not in own]
            if outside:
                yield path, name, value, outside


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
            numbered = [(f"argument {number}", part) for number, part in enumerate(value.args)]
            for key, part in [*numbered, *value.keywords.items()]:
                yield from self.found_in(part, key, depth + 1)
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
    """Return whether a module has both the graph and the parameters, or an optimizer has the parameters."""
    optimizers = _all_objects(Optimizer)
    groups = [group for one in optimizers for group in getattr(one, "param_groups", ())]
    if parameters.issubset(parameter for group in groups for parameter in group["params"]):
        return True
    return _have_module_with(graph, parameters)


def _have_module_with(graph: nn.Module, parameters: set[nn.Parameter]) -> bool:
    """Return whether a module has both the graph and the parameters."""
    modules = [one for one in _all_objects(nn.Module) if "_modules" in vars(one)]
    around = [one for one in modules if any(part is graph for part in one.modules())]
    return any(parameters.issubset(one.parameters()) for one in around)


def _all_objects(kind: type[_Kind]) -> list[_Kind]:
    """Return all objects of a type. It visits the whole process: use it where something is suspicious."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # frozen objects are not listed
    try:
        return [one for one in gc.get_objects() if issubclass(type(one), kind)]
    finally:
        if is_frozen:
            gc.freeze()


def _is_name_of(value: nn.Module, name: str, function: Any) -> bool:
    """Return whether a dotted name means this module where the function is written.

    It does not for a module in a list, for an argument of a functools.partial, and for `self` of a method.
    """
    if not isinstance(function, FunctionType):
        return False
    closure = zip(function.__code__.co_freevars, function.__closure__ or ())
    scope = {**function.__globals__, **{free: _contents(cell) for free, cell in closure}}
    root, *attributes = name.split(".")
    return _follow(scope.get(root), root, tuple(attributes))[0] is value


def _message(function: Any, name: str, value: nn.Module | nn.Parameter, outside: list[nn.Parameter]) -> str:
    count = sum(one.numel() for one in outside if not is_lazy(one))
    what = type(value).__name__ if isinstance(value, nn.Module) else "parameter"
    fix = "Write a small nn.Module that contains it."
    if isinstance(function, MethodType) and function.__self__ is value:
        fix = "Pass the module itself, not its method."
    elif isinstance(value, nn.Module):
        node = f"it a node, through({name})" if _is_name_of(value, name, function) else "this module a node"
        fix = f"Make {node}, followed by the function, or write a small nn.Module that contains it."
    return (
        f"the function uses the {what} {name!r} ({count:,} trainable parameters), which is not part of the "
        f"graph, so it is neither trained nor saved with it. {fix} If it should stay as it is, freeze it: "
        "requires_grad_(False)."
    )
