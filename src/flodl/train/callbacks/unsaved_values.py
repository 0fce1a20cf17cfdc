"""Numbers and flags that hooks carry from call to call in attributes and variables, and that no save has."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

from torch import Tensor

from .hooks import HOOKS

_PLAIN = (bool, int, float, str, type(None))
# The time of an earlier call is not a result.
_CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "now"})
_READS = {"ATTR": ("LOAD_ATTR", "LOAD_METHOD"), "DEREF": ("LOAD_DEREF",), "GLOBAL": ("LOAD_GLOBAL",)}


class UnsavedValues:
    """Compare the plain values of hooks without a `state_dict` with those at the start.

    Only what a call reads and then replaces counts: a counter does, the loss of the last step does not, and
    neither do lists that are filled.

    >>> class Patience:
    ...     __module__, best = "mine", 9.0
    ...
    ...     def on_epoch_end(self, metrics):
    ...         self.best = min(self.best, metrics["loss"])
    >>> hook = Patience()
    >>> values = UnsavedValues([hook])
    >>> hook.on_epoch_end({"loss": 2.0})
    >>> values.changed()
    [['Patience', {'best': '2.0'}]]
    """

    def __init__(self, hooks: Sequence[Any]) -> None:
        # A program with on_resume restores what it needs there.
        own = [hook for hook in hooks if not type(hook).__module__.startswith("flodl.")]
        restores = any(_has_on_resume(hook) for hook in own)
        self._hooks = [] if restores else own
        self._before = [_values_of(hook) for hook in self._hooks]

    def changed(self) -> list[list[Any]]:
        """Return the name of each hook with such values, and those that changed, as text."""
        found = []
        for hook, before in zip(self._hooks, self._before):
            now = {name: value for name, value in _values_of(hook).items() if value != before.get(name)}
            found.append([_name(hook), now])
        return [one for one in found if one[1]]

    def lost(self, saved: Iterable[Sequence[Any]]) -> Iterator[str]:
        """Yield a warning for each hook whose values were different when the run was saved."""
        left = list(self._hooks)
        for name, values in saved:
            hook = next((one for one in left if _name(one) == name), None)
            if hook is None:
                continue
            left.remove(hook)
            now = _values_of(hook)
            lost = sorted(each for each, value in values.items() if each in now and now[each] != value)
            if lost:
                yield _warning(hook, lost, now, values)


def _warning(hook: Any, lost: Sequence[str], now: dict[str, str], saved: dict[str, str]) -> str:
    is_function = isinstance(hook, FunctionType)
    what = ("variable" if is_function else "attribute") + ("s" if len(lost) > 1 else "")
    changes = ", ".join(f"{each!r} is now {now[each]}, was {saved[each]}" for each in lost)
    them = "them" if len(lost) > 1 else "it"
    remedy = "Make it a class with" if is_function else "Give it"
    return (
        f"the hook {_name(hook)} has changed the {what} {' and '.join(map(repr, lost))}, and no save "
        f"contains {them}: {changes}. {remedy} state_dict() and load_state_dict(), which save "
        f"and restore {them}."
    )


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", None) or type(hook).__name__


def _has_on_resume(hook: Any) -> bool:
    """Return whether a hook has an `on_resume` that is not flodl's, as in a subclass of EarlyStopping."""
    function = getattr(hook, "on_resume", hook if getattr(hook, "__name__", "") == "on_resume" else None)
    return callable(function) and not str(getattr(function, "__module__", "")).startswith("flodl.")


def _values_of(hook: Any) -> dict[str, str]:
    """Return the plain values that the functions of a hook carry from call to call, as text."""
    owner = hook.__self__ if isinstance(hook, MethodType) else hook
    known = _saved_names(owner)
    if known is None:
        return {}
    functions = list(_functions_of(owner))
    # Set again at the start of each epoch.
    starts = [one.__code__ for one in functions if one.__name__ == "on_epoch_start"]
    known |= {
        name for code in starts for name in _assigned(code, "ATTR") if not _is_carried(code, "ATTR", name)
    }
    found: dict[str, Any] = {}
    for function in functions:
        code = function.__code__
        if _CLOCKS.intersection(code.co_names):
            continue
        carried = {name for name in _assigned(code, "ATTR") if _is_carried(code, "ATTR", name)}
        found |= {name: _attribute(owner, name) for name in carried - known}
        cells = dict(zip(code.co_freevars, function.__closure__ or ()))
        for name in _assigned(code, "DEREF"):
            if name in cells and _is_carried(code, "DEREF", name):
                found[name] = _contents(cells[name])
        for name in _assigned(code, "GLOBAL"):
            if _is_carried(code, "GLOBAL", name):
                found[name] = function.__globals__.get(name, found)
    plain = {
        name: each.item() if isinstance(each, Tensor) and each.numel() == 1 else each
        for name, each in found.items()
    }
    return {name: repr(each) for name, each in plain.items() if isinstance(each, _PLAIN)}


def _saved_names(owner: Any) -> set[str] | None:
    """Return the attributes in the state of a hook; None if its own state_dict decides what is saved."""
    if not hasattr(owner, "state_dict"):
        return set()
    for kind in type(owner).__mro__:
        if "state_dict" in vars(kind):
            # A subclass of a hook of flodl may have more attributes than that saves.
            return None if not kind.__module__.startswith("flodl.") else set(owner.state_dict())
    return None


def _functions_of(owner: Any) -> Iterator[FunctionType]:
    """Yield the functions of a hook, without those of flodl, torch and Python."""
    if isinstance(owner, FunctionType):
        yield owner
        return
    yield from (each for each in getattr(owner, "__dict__", {}).values() if isinstance(each, FunctionType))
    for kind in type(owner).__mro__:
        if kind.__module__.partition(".")[0] not in ("flodl", "torch", "builtins"):
            for name, value in vars(kind).items():
                if isinstance(value, FunctionType) and (name in HOOKS or not name.startswith("__")):
                    unwrapped = inspect.unwrap(value)
                    if isinstance(unwrapped, FunctionType):
                        yield unwrapped


def _assigned(code: CodeType, kind: str) -> set[str]:
    """Return the attributes, outer or global variables that code assigns."""
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname == f"STORE_{kind}"}


def _is_carried(code: CodeType, kind: str, name: str) -> bool:
    """Return whether code reads a name and assigns it afterwards, as `self.count += 1` does."""
    is_read = False
    for each in dis.get_instructions(code):
        if each.argval != name:
            continue
        if each.opname in _READS[kind]:
            is_read = True
        elif each.opname == f"STORE_{kind}" and is_read:
            return True
    return False


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute without calling a property; the owner itself if there is none."""
    value = inspect.getattr_static(owner, name, owner)
    return getattr(owner, name, owner) if isinstance(value, MemberDescriptorType) else value


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
