"""`Contents`: describe any value, with everything that it reaches, as plain data of limited size."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from operator import itemgetter
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, GeneratorType, MappingProxyType, MethodType, ModuleType
from typing import Any

from ..clock import READING, is_reading
from ..function_text import code_hash, function_label
from ..plain import hide_secret, plain
from .imports import describe_imports
from .leaves import (
    BASIC,
    MAX_NUMBERS,
    array_text,
    has_settings,
    hash_of_basic,
    key_text,
    name_of,
    qualified_name,
    short_text,
    text_hash,
)
from .objects import (
    MISSING,
    attributes_of,
    class_label,
    computed_by,
    constants_of,
    defaults_of,
    follow,
    functions_of,
    is_module,
    module_settings,
    registered,
    states_of,
)
from .origin import is_user_class, is_user_file
from .reads import Read, reads_of
from .schedulers import is_scheduler, scheduler_settings

MAX_PARTS = 2000
# For the items of long sequences: all of them together, and the minimum for each sequence.
_MAX_ITEM_PARTS, _LEAST_ITEM_PARTS = 40_000, 500
_MAX_DEPTH = 8
_MAX_ITEMS = 32
_MAX_SAMPLED = 1000
_MAX_MODULES = 64


class Contents:
    """Describe values; `known` are names for objects that are described elsewhere, by their id.

    Functions and classes of the user are described by a hash of their code, functions also by the values
    that they read, objects by their class and their attributes. No user code is called.

    >>> scale = 2.0
    >>> Contents().of(lambda x: x * scale)
    {'code': 'lambda x: x * scale', 'scale': 2.0}
    """

    def __init__(
        self,
        known: Mapping[int, str] | None = None,
        *,
        max_parts: int = MAX_PARTS,
        label: Callable[[FunctionType], str] = function_label,
    ) -> None:
        self._known = known or {}
        self._label = label
        self._num_left = self._max_parts = max_parts
        self._num_left_for_items = _MAX_ITEM_PARTS
        self._is_in_items = False
        # The objects and functions that are being described: a cycle ends there.
        self._open: set[int] = set()

    def of(self, value: Any) -> Any:
        """Return the description: None, booleans, numbers, strings, lists and dictionaries."""
        self._num_left -= 1
        if (name := self._known.get(id(value))) is not None:
            return name
        if self._num_left <= 0 or len(self._open) > _MAX_DEPTH or id(value) in self._open:
            return self._description(value) if type(value) in BASIC else name_of(value)
        is_open = type(value) not in BASIC
        try:
            if is_open:
                self._open.add(id(value))
            return self._description(value)
        except Exception:  # the record of a run must not fail
            return name_of(value)
        finally:
            if is_open:
                self._open.discard(id(value))

    def _description(self, value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, Enum):
            return short_text(str.__str__(value))
        if isinstance(value, Enum):
            return self._member(value)
        if is_reading(value):
            return READING
        if isinstance(value, bool | int | float | type(None) | bytes | bytearray | complex):
            return plain(value)
        if isinstance(value, PurePath | Decimal | Fraction):
            return str(value)
        if (found := array_text(value)) is not None:
            return found
        if isinstance(value, type):
            return self._class(value) if is_user_class(value) else qualified_name(value)
        if (cached := computed_by(value)) is not value:
            return self.of(cached)
        is_own = is_user_class(type(value))
        for kinds, describe in self._kinds if not is_own else ():
            if isinstance(value, kinds):
                return describe(self, value)
        if is_scheduler(value):
            return self._attributes(value, scheduler_settings(attributes_of(value), is_own=is_own))
        return self._module(value) if is_module(value) else self._object(value)

    def of_many(self, items: Any) -> str:
        """Describe a long sequence by its length and a hash.

        Up to 1,000,000 numbers and strings, also in rows, are hashed as a whole, of others 1000 items from
        the start to the end.
        """
        if (known := hash_of_basic(items)) is not None:
            return f"{len(items)} items #{known}"
        count, num_shown = len(items), min(len(items), _MAX_SAMPLED)
        chosen = [items[(count - 1) * number // max(1, num_shown - 1)] for number in range(num_shown)]
        return f"{count} items #{text_hash(repr(self._items(chosen)))}"

    def _items(self, items: list[Any]) -> list[Any]:
        """Describe the items of a long sequence, leaving enough of the limit for what follows it."""
        if self._is_in_items:
            return [self.of(item) for item in items]
        before = self._num_left
        share = max(self._num_left_for_items // 4, _LEAST_ITEM_PARTS)
        share = self._num_left = min(share, 5 * self._max_parts)
        self._is_in_items = True
        try:
            return [self.of(item) for item in items]
        finally:
            self._num_left_for_items -= share - max(self._num_left, 0)
            self._num_left, self._is_in_items = before, False

    def _member(self, value: Enum) -> str:
        """Describe a member of an enum by its name; of an enum of the user also by its value."""
        name = f"{type(value).__name__}.{value._name_}"
        return f"{name} = {self.of(value._value_)!r}" if is_user_class(type(value)) else name

    def _class(self, kind: type) -> Any:
        """Describe a class of the user by its code; an enum also by the values of its members."""
        if not issubclass(kind, Enum):
            return class_label(kind)
        members = {name: self.of(one._value_) for name, one in kind._member_map_.items()}
        return {"class": class_label(kind), **members}

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        items = list(value.items())
        if len(items) > _MAX_ITEMS and all(type(key) is str for key in value):
            # Equal dicts have equal descriptions: the order of a vocabulary may differ between processes.
            items.sort(key=itemgetter(0))
        named = [(self._key(key), item) for key, item in items[:_MAX_ITEMS]]
        shown = {name: self.of(hide_secret(name, item)) for name, item in named}
        if len(items) > _MAX_ITEMS:
            shown["…"] = self.of_many(items[_MAX_ITEMS:])
        return shown

    def _key(self, key: Any) -> str:
        return key_text(key) if type(key) in BASIC else str(self.of(key))

    def _sequence(self, value: list[Any] | tuple[Any, ...]) -> Any:
        fields = getattr(type(value), "_fields", None)
        items = list(value)
        if isinstance(value, tuple) and isinstance(fields, tuple):
            return {str(name): self.of(item) for name, item in zip(fields, items)}
        is_short = len(items) <= MAX_NUMBERS
        if is_short or (len(items) <= _MAX_ITEMS and not all(type(item) in BASIC for item in items)):
            return [self.of(item) for item in items]
        return self.of_many(items)

    def _array(self, value: array[Any]) -> Any:
        return list(value) if len(value) <= MAX_NUMBERS else self.of_many(value)

    def _set(self, value: set[Any] | frozenset[Any]) -> Any:
        if {type(item) for item in value} <= set(BASIC):
            return self._sequence(sorted(value, key=repr))
        return self._sequence(sorted((self.of(item) for item in list(value)[:_MAX_SAMPLED]), key=repr))

    def _generator(self, value: GeneratorType[Any, Any, Any]) -> str:
        return f"{value.__qualname__} #{code_hash(value.gi_code)}"

    def _partial(self, value: partial[Any]) -> Any:
        inner = _as_dict(self.of(value.func))
        arguments = {"arguments": self.of(list(value.args))} if value.args else {}
        given = {name: self.of(hide_secret(name, item)) for name, item in value.keywords.items()}
        return {**inner, **arguments, **given}

    def _method(self, value: MethodType) -> Any:
        if isinstance(value.__func__, FunctionType):
            return self._function(value.__func__, value.__self__)
        return name_of(value)

    def _function(self, function: FunctionType, owner: Any = MISSING) -> Any:
        """Describe a function by its code and what it reads; `owner` is its first argument, if known."""
        code = function.__code__
        if not is_user_file(code.co_filename):
            wrapped = vars(function).get("__wrapped__")
            registered_for = vars(function).get("registry")
            if isinstance(registered_for, MappingProxyType) and len(registered_for) > 1:  # singledispatch
                return {qualified_name(kind): self.of(one) for kind, one in registered_for.items()}
            if isinstance(wrapped, FunctionType):
                return self._function(wrapped, owner)
            return qualified_name(function) if wrapped is None else self.of(wrapped)
        label = self._label(function)
        if id(code) in self._open:
            return label
        self._open.add(id(code))
        try:
            found = self._reads(function, owner)
        finally:
            self._open.discard(id(code))
        return {"code": label, **found} if found else label

    def _reads(self, function: FunctionType, owner: Any) -> dict[str, Any]:
        """Describe the values that a function reads, and its defaults, by name."""
        code, found = function.__code__, dict[str, Any]()
        cells = dict(zip(code.co_freevars, function.__closure__ or ()))
        whole = set[tuple[str, ...]]()
        targets: list[tuple[tuple[str, ...], Any, Any]] = []
        for read in reads_of(code):
            value = _variable(read, function, cells, owner)
            if value is not MISSING and not read.name.startswith("__"):
                attributes, target, held_by = follow(value, read.attributes, read.keys)
                path = (read.name, *attributes)
                if target is not MISSING:
                    targets.append((path, target, held_by))
                    whole.add(path)
        for path, target, held_by in targets:
            if not any(path[:size] in whole for size in range(1, len(path))) and _is_recorded(path, target):
                is_method = held_by is not MISSING
                described = self._function(target, held_by) if is_method else self.of(target)
                own = target.__code__.co_varnames[:1] if is_method else ()
                _place(found, path, hide_secret(path[-1], described), own)
        for module, imported in describe_imports(code, function.__globals__).items():
            held = found.get(module)
            found[module] = {**imported, **held} if isinstance(held, dict) else imported
        given = defaults_of(function)
        return found | {name: self.of(hide_secret(name, item)) for name, item in given.items()}

    def _module(self, value: Any) -> Any:
        """Describe a module of torch by its settings, parameters and buffers, and its submodules."""
        count = sum(1 for _, _ in zip(range(_MAX_MODULES + 1), value.modules()))
        if count > _MAX_MODULES:
            tensors = {name: array_text(item) for name, item in value.state_dict().items()}
            return f"{type(value).__name__} with {len(tensors)} tensors #{text_hash(repr(tensors))}"
        return self._attributes(value, {**module_settings(value), **registered(value)})

    def _object(self, value: Any) -> Any:
        kind = type(value)
        module = str(kind.__module__)
        is_plain = is_user_class(kind) or module in ("argparse", "types")
        if not is_plain and not has_settings(kind, module):
            return name_of(value)
        stored = attributes_of(value)
        if not is_plain:
            stored = {name: item for name, item in stored.items() if not name.startswith("_")}
        if isinstance(value, dict):
            stored = {**stored, **{key_text(name): item for name, item in dict.items(value)}}
        elif isinstance(value, list | tuple):
            stored = {**stored, "items": list(list.__iter__(value) if isinstance(value, list) else value)}
        return self._attributes(value, stored)

    def _attributes(self, value: Any, stored: Mapping[str, Any]) -> Any:
        label = class_label(type(value))
        found: dict[str, Any] = {"class": label}
        states = states_of(value)
        known = {**constants_of(type(value)), **stored}
        items = [(name, item) for name, item in known.items() if item is not None and name not in states]
        found |= {name: self.of(hide_secret(name, item)) for name, item in items[: 2 * _MAX_ITEMS]}
        found = {**self.of_class(type(value)), **found}
        return found if len(found) > 1 else label

    def of_class(self, kind: type) -> dict[str, Any]:
        """Return what the functions of a class of the user read from outside, and their defaults.

        Those of constructors are left out: an object may have been created with other values.
        """
        found: dict[str, Any] = {}
        for name, function in functions_of(kind):
            outside = self._function(function)
            if isinstance(outside, dict):
                unused = defaults_of(function) if name in ("__init__", "__new__") else {}
                for key, item in outside.items():
                    if key not in unused:
                        found.setdefault(key, item)
        found.pop("code", None)
        return found

    _kinds: tuple[tuple[Any, Callable[[Contents, Any], Any]], ...] = (
        (FunctionType, _function),
        (MethodType, _method),
        (partial, _partial),
        (GeneratorType, _generator),
        (dict | MappingProxyType, _mapping),
        (list | tuple | deque, _sequence),
        (set | frozenset, _set),
        (range, lambda _, value: repr(value)),
        (slice, lambda self, value: f"slice({', '.join(str(self.of(one)) for one in _parts(value))})"),
        (array, _array),
        (BuiltinFunctionType | ModuleType, lambda _, value: qualified_name(value)),
    )


def _variable(read: Read, function: FunctionType, cells: Mapping[str, Any], owner: Any) -> Any:
    if read.scope == "own":
        return owner
    if read.scope == "free":
        try:
            return cells[read.name].cell_contents
        except (KeyError, ValueError):  # of a function inside this one, or not assigned yet
            return MISSING
    return function.__globals__.get(read.name, MISSING) if read.scope == "global" else MISSING


def _place(found: dict[str, Any], path: tuple[str, ...], described: Any, own: tuple[str, ...]) -> None:
    """Put a description at its path; what a method reads of its object, `own`, belongs to the object."""
    holder = found
    for name in path[:-1]:
        inner = holder.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        holder = inner
    if isinstance(described, dict) and own and isinstance(described.get(own[0]), dict):
        for name, item in described.pop(own[0]).items():
            holder.setdefault(name, item)
        described = described["code"] if len(described) == 1 else described
    holder[path[-1]] = described


def _is_recorded(path: tuple[str, ...], value: Any) -> bool:
    """Return whether a value says more than the code that names it."""
    if isinstance(value, ModuleType):
        return False
    is_library = isinstance(value, BuiltinFunctionType) or (
        isinstance(value, type) and not is_user_class(value)
    )
    if isinstance(value, FunctionType) and not is_user_file(value.__code__.co_filename):
        is_library = "__wrapped__" not in vars(value)
    return not is_library or getattr(value, "__name__", "") != path[-1]


def _parts(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _as_dict(described: Any) -> dict[str, Any]:
    return described if isinstance(described, dict) else {"code": described}
