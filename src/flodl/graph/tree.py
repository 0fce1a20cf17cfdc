"""Read, freeze and switch the parts of a graph by dotted path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, cast

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core import PathError, log, paths
from flodl.core.formats import format_count
from flodl.core.usage.calls import (
    GraphCallError,
    PathCallError,
    check_flag,
    explain_calls,
    explain_methods,
)

from .control.loop import Loop
from .core import GraphCore, detach_modules, reset_modules
from .paths import Match, PathKind, expand, find, graphs_inside, paths_with_parameters
from .plan.memory import FailedCall

_one_path = explain_calls(
    PathCallError,
    example="Pass one path, or a pattern such as 'encoder.**' for several parts.",
)


class TrainingModeError(GraphCallError, ValueError):
    """The mode of `train` is not a bool, which is a ValueError in torch."""


@explain_methods(GraphCallError)
class GraphTree(GraphCore):
    """Address subgraphs, tags and nodes by dotted path."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of this graph, in the order of declaration."""
        return tuple(name for name, _ in self._spec.tags)

    @property
    def tag_groups(self) -> dict[str, tuple[str, ...]]:
        """The tag groups of this graph, each with its tags."""
        return dict(self._spec.groups)

    @property
    def subgraphs(self) -> dict[str, Self]:
        """The graphs directly inside, by label; a graph without one by the name of its node."""
        found = {child.label or prefix: child for prefix, child in graphs_inside(self)}
        # The builder makes only one class of graphs.
        return cast("dict[str, Self]", found)

    @_one_path
    def subgraph(self, path: str) -> Self:
        """Return the graph at a path."""
        match = self._find(path)
        if not isinstance(match.module, GraphCore):
            raise PathError(f"{path!r} is a {match.kind}, not a subgraph. Read a tag with tagged({path!r}).")
        return cast("Self", match.module)

    @_one_path
    def path_kind(self, path: str) -> PathKind:
        """Return "subgraph", "tag" or "node"; an unknown path raises with the nearest names."""
        return self._find(path).kind

    @_one_path
    def tagged(self, path: str) -> Any:
        """Return the last value of a tag, or None before the first call."""
        match = self._find(path, tag_first=True)
        if match.kind != "tag":
            raise PathError(f"{path!r} is a {match.kind}, not a tag. Put .tag(…) after the node to read it.")
        owner = match.owner
        if not owner._keeps_tags:
            raise PathError(
                f"tags are not kept, so {path!r} has no value. Set model.keeps_tags = True first."
            )
        memory = owner._memory
        if memory.stored is None:
            raise PathError(
                f"the last call did not keep tags, so {path!r} has no value: it ran, or was recorded, while "
                "keeps_tags was False. Call the model, or create the TrainStep, after setting it."
            )
        if isinstance(memory.stored, FailedCall):
            raise PathError(f"the last call raised an error, so {path!r} has no value. Call the model again.")
        return memory.copied(memory.stored[owner.spec.tag_index[match.name]])

    @_one_path
    def traces(self, path: str) -> list[Any]:
        """Return what a loop body published, one value per iteration: 'refined.size', or just 'size'."""
        *parents, name = paths.split(path)
        loops = self._loops(".".join(parents)) if parents else self._loops(None)
        found = [loop.traces for loop in loops if name in loop.traces.stored]
        if len(found) == 1:
            return list(found[0].copied(found[0].stored[name]))
        if len(found) > 1:
            raise PathError(
                f"{len(found)} loops publish {name!r}. Put the loop's tag in front: 'tag.{name}'."
            )
        if published := [known for loop in self._loops_at(path) for known in loop.traces.stored]:
            if len(published) == 1:
                return self.traces(f"{path}.{published[0]}")
            raise PathError(
                f"the loop {path!r} publishes {', '.join(map(repr, published))}. Name one of them."
            )
        known = [known for loop in loops for known in loop.traces.stored]
        if loops and not any(loop.traces.has_run for loop in loops):
            return []  # the names are unknown before the first run
        raise PathError(f"no loop publishes {path!r}. {paths.suggestion(name, known, known_as='traces')}")

    @_one_path
    def modules_at(self, path: str) -> list[nn.Module]:
        """Return the modules at a path, a pattern or a tag group, each once."""
        names = self._spec.group_members.get(path, (path,)) if isinstance(path, str) else (path,)
        found = {id(match.module): match.module for name in names for match in expand(self, name)}
        return [module for module in found.values() if module is not None]

    @_one_path
    def parameters_at(self, path: str) -> list[nn.Parameter]:
        """Return the parameters under a path or pattern, each once, including frozen ones."""
        found = {id(p): p for module in self.modules_at(path) for p in module.parameters()}
        return list(found.values())

    @_one_path
    def named_parameters_at(self, path: str) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters under a path or pattern with their names in `state_dict`, each once."""
        found = {id(parameter) for parameter in self.parameters_at(path)}
        return [(name, parameter) for name, parameter in self.named_parameters() if id(parameter) in found]

    @_one_path
    def named_buffers_at(self, path: str) -> list[tuple[str, Tensor]]:
        """Return the buffers under a path or pattern with their names in this graph, each once."""
        found = {id(buffer) for module in self.modules_at(path) for buffer in module.buffers()}
        return [(name, buffer) for name, buffer in self.named_buffers() if id(buffer) in found]

    @_one_path
    def freeze(self, path: str, *, eval_mode: bool = False) -> NotABlock:
        """Set `requires_grad=False` for the parameters under a path, until `thaw`.

        For a `with` block, use `frozen`. With `eval_mode`, the modules under it (dropout, batch norm) are
        also put into evaluation mode, and later calls of `train()` leave them there until `thaw`.
        """
        check_flag("freeze", "eval_mode", eval_mode, PathCallError)
        for parameter in self._parameters_to_change(path, "freeze"):
            mark_frozen(parameter)
            parameter.requires_grad_(False)
            parameter.grad = None  # an optimizer would still apply it
        if eval_mode:
            for module in self.modules_at(path):
                set_kept_in_eval(module, True)
                module.eval()
        return NotABlock(path)

    @_one_path
    def thaw(self, path: str) -> None:
        """Set `requires_grad=True` for all parameters under a path, and undo `eval_mode`."""
        parameters = self._parameters_to_change(path, "thaw")
        by_hand = [parameter for parameter in parameters if unmark_frozen(parameter)]
        if 0 < len(by_hand) < len(parameters):
            log.warn(
                "note: thaw(%r) also unfreezes %d of %d parameters that were already frozen, but not by "
                "freeze, when freeze was called. If they should stay frozen, set requires_grad_(False) "
                "again, or use 'with model.frozen(path):'.",
                path,
                len(by_hand),
                len(parameters),
            )
        for parameter in parameters:
            parameter.requires_grad_(True)
        for module in self.modules_at(path):
            for inner in module.modules():
                if is_kept_in_eval(inner):
                    set_kept_in_eval(inner, False)
                    inner.train(self.training)

    def unfreeze(self, path: object = "encoder", **_settings: object) -> NoReturn:
        """Raise an error that names `thaw`."""
        raise PathError(f"a graph has no method 'unfreeze'. Write model.thaw({path!r:.60}).")

    def train(self, mode: bool = True) -> Self:
        """Switch all modules to training or evaluation mode, except those frozen with `eval_mode`."""
        if not isinstance(mode, bool):
            raise TrainingModeError(
                f"train({mode!r:.60}): the mode is True for training, False for evaluation."
            )
        super().train(mode)
        if mode:
            for module in self.modules():
                if is_kept_in_eval(module):
                    module.eval()
        return self

    @contextmanager
    @_one_path
    def frozen(self, path: str) -> Iterator[None]:
        """Freeze the parameters under a path inside a `with` block, and restore them afterwards."""
        before = [(p, p.requires_grad) for p in self._parameters_to_change(path, "freeze")]
        self.freeze(path)
        try:
            yield
        finally:
            for parameter, requires_grad in before:
                parameter.requires_grad_(requires_grad)

    @_one_path
    def is_frozen(self, path: str) -> bool:
        """Return whether there are parameters under a path and none of them requires a gradient."""
        found = self.parameters_at(path)
        return bool(found) and not any(parameter.requires_grad for parameter in found)

    @_one_path
    def set_training(self, path: str, mode: bool) -> None:
        """Switch the modules under a path to training or evaluation mode."""
        if not isinstance(mode, bool):
            raise PathError(
                f"set_training({path!r}, {mode!r:.60}): the mode is True for training, False for evaluation."
            )
        found = self.modules_at(path)
        if not found:
            raise PathError(
                f"{path!r} has no module to switch: it names a sum or an input. Tag the module itself."
            )
        for module in found:
            module.train(mode)

    def tree_summary(self) -> str:
        """Return the tree as text: each graph with its number of parameter elements and its tags."""
        return "\n".join(_summary_lines(self, self.label or "(root)", "", ""))

    @_one_path
    def reset_state(self, path: str | None = None) -> None:
        """Drop the carried values of everything, or of everything under a path.

        Your own modules that have a method `reset_state` are reset too.
        """
        reset_modules(self.modules() if path is None else self._modules_under(path))

    @_one_path
    def detach_state(self, path: str | None = None) -> None:
        """Detach carried, tagged and traced values from the autograd graph, everywhere or under a path."""
        detach_modules(self.modules() if path is None else self._modules_under(path))

    def _modules_under(self, path: str) -> list[nn.Module]:
        """Return the modules at a path and everything inside them, each once."""
        found = {id(inner): inner for module in self.modules_at(path) for inner in module.modules()}
        return list(found.values())

    def _find(self, path: str, *, tag_first: bool = False) -> Match:
        if paths.is_glob(path):
            raise PathError(f"{path!r} is a pattern. This method takes a single path.")
        if isinstance(path, str) and path in self._spec.group_members:
            members = ", ".join(map(repr, self._spec.group_members[path]))
            raise PathError(f"{path!r} is a group of tags. Name one of them: {members}.")
        return find(self, path, tag_first=tag_first)

    def _parameters_to_change(self, path: str, verb: str) -> list[nn.Parameter]:
        found = self.parameters_at(path)
        if not found:
            raise PathError(
                f"{path!r} has no parameters to {verb}: it names a value without any, such as a sum or an "
                f"activation. {paths_with_parameters(self)}"
            )
        return found

    def _loops(self, path: str | None) -> list[Loop]:
        """Return the loops of this graph, or those at a path, without entering graphs inside."""
        if path is not None:
            module = self._find(path).module
            if isinstance(module, GraphTree):
                around = [m for m in self.modules() if isinstance(m, Loop) and m.body is module]
                return module._loops(None) + around
            return _loops_in(module)
        return [loop for module in self._modules.values() for loop in _loops_in(module)]

    def _loops_at(self, path: str) -> list[Loop]:
        try:
            return self._loops(path)
        except PathError:
            return []


class NotABlock:
    """What `freeze` returns: it explains `with model.freeze(path):`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"<{self._path!r} is frozen>"

    def __enter__(self) -> NoReturn:
        raise PathCallError(
            f"freeze({self._path!r}) cannot be used with 'with'; {self._path!r} is now frozen. Write "
            f"'with model.frozen({self._path!r}):'. To undo freeze, write model.thaw({self._path!r})."
        )

    def __exit__(self, *_error: object) -> None:
        """Make this a context manager for Python, so that it calls `__enter__`."""


def _loops_in(module: nn.Module | None) -> list[Loop]:
    if module is None or isinstance(module, GraphCore):
        return []
    own = [module] if isinstance(module, Loop) else []
    return own + [loop for child in module.children() for loop in _loops_in(child)]


def _summary_lines(graph: GraphTree, name: str, lead: str, branch: str) -> list[str]:
    known = [parameter for parameter in graph.parameters() if not is_lazy(parameter)]
    total = sum(parameter.numel() for parameter in known)
    frozen = sum(parameter.numel() for parameter in known if not parameter.requires_grad)
    words = [f"{format_count(total)} parameters"]
    if frozen:
        words.append("all frozen" if frozen == total else f"{format_count(frozen)} frozen")
    tags = [f"({tag})" if tag in graph.spec.internal_tags else tag for tag in graph.tags]
    if tags:
        words.append("tags: " + ", ".join(tags))
    lines = [f"{lead}{branch}{name}  {', '.join(words)}"]
    below = lead + {"": "", "├── ": "│   ", "└── ": "    "}[branch]
    children = list(graph.subgraphs.items())
    for position, (child_name, child) in enumerate(children):
        last = position == len(children) - 1
        lines += _summary_lines(child, child_name, below, "└── " if last else "├── ")
    return lines


_KEPT_IN_EVAL = "_flodl_stilled"
_FROZEN_BY = "_flodl_frozen_by"


def mark_frozen(parameter: nn.Parameter) -> None:
    """Note on a parameter, before it is frozen, whether it was frozen already, by something else."""
    if parameter.requires_grad:
        setattr(parameter, _FROZEN_BY, "freeze")
    elif not hasattr(parameter, _FROZEN_BY):
        setattr(parameter, _FROZEN_BY, "hand")


def unmark_frozen(parameter: nn.Parameter) -> bool:
    """Remove the note; return whether the parameter is frozen, and was frozen before `freeze`."""
    return parameter.__dict__.pop(_FROZEN_BY, None) == "hand" and not parameter.requires_grad


def is_kept_in_eval(module: nn.Module) -> bool:
    """Return whether a module stays in evaluation mode when its graph is switched to training."""
    return _KEPT_IN_EVAL in module.__dict__


def set_kept_in_eval(module: nn.Module, keep: bool) -> None:
    """Set whether `train()` leaves a module in evaluation mode; its current mode does not change."""
    if keep:
        module.__dict__[_KEPT_IN_EVAL] = True
    else:
        module.__dict__.pop(_KEPT_IN_EVAL, None)
