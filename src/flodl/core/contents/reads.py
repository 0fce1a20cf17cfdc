"""The variables that a function reads from outside, and the attributes it reads of them.

They are found in its bytecode, which is what runs; the file of a function may have been edited since.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_WITHOUT_EFFECT = frozenset({"EXTENDED_ARG", "CACHE", "NOP"})


class Read(NamedTuple):
    """A variable ("global", "free" or the first argument, "own"), and what is read of it.

    `keys` are the constant keys with which the last attribute is indexed, as in `config["loss"]["scale"]`.
    """

    scope: str
    name: str
    attributes: tuple[str, ...]
    keys: tuple[str, ...] = ()


def reads_of(code: CodeType) -> tuple[Read, ...]:
    """Return what a function reads and does not assign, in order; its first argument may be `self`.

    >>> [read[1:] for read in reads_of((lambda x: x * config.loss["scale"] + offset).__code__)]
    [('x', (), ()), ('config', ('loss',), ('scale',)), ('offset', (), ())]
    """
    found, assigned = uses_of(code)
    return tuple(read for read in found if not any(_contains(one, read) for one in assigned))


@lru_cache(maxsize=1024)
def uses_of(code: CodeType) -> tuple[tuple[Read, ...], tuple[Read, ...]]:
    """Return what a function reads, and what it assigns or changes, each in order."""
    own = code.co_varnames[0] if code.co_argcount else ""
    found: dict[Read, None] = {}
    assigned: dict[Read, None] = {}
    for inner in with_nested(code):
        for read, is_assigned in _uses(inner, own if inner is code or own in inner.co_freevars else ""):
            (assigned if is_assigned else found)[read] = None
    return tuple(found), tuple(assigned)


def _contains(assigned: Read, read: Read) -> bool:
    size = len(assigned.attributes)
    return assigned[:2] == read[:2] and assigned.attributes == read.attributes[:size]


def with_nested(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_nested(constant)


def _uses(code: CodeType, own: str) -> Iterator[tuple[Read, bool]]:
    """Yield each use of a variable, and whether it is an assignment."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _WITHOUT_EFFECT]
    for index, one in enumerate(instructions):
        if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield Read("global", str(one.argval), ()), True
        elif one.opname == "STORE_DEREF":
            yield Read("free", str(one.argval), ()), True
        else:
            names = _variables(one, own)
            yield from ((Read(scope, name, ()), False) for scope, name in names[:-1])
            if names:
                yield _use(instructions, index + 1, *names[-1])


def _variables(one: dis.Instruction, own: str) -> list[tuple[str, str]]:
    """Return the variables that an instruction loads, in order."""
    if one.opname in _GLOBALS:
        return [("global", str(one.argval))]
    if one.opname in _FREE:
        return [("own" if one.argval == own else "free", str(one.argval))]
    if own and one.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD_FAST")):
        # From Python 3.13 on, one instruction may load two variables, or store one and load one.
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        loaded = names[1:] if one.opname.startswith("STORE") else names
        return [("own", own) if name == own else ("local", name) for name in loaded]
    return []


def _use(instructions: list[dis.Instruction], index: int, scope: str, name: str) -> tuple[Read, bool]:
    """Follow the attributes of a variable that was loaded before `index`."""
    attributes: list[str] = []
    after_type = _end_of_type_call(instructions, index) if scope in ("own", "local") else index
    if after_type > index:
        attributes, index = ["__class__"], after_type
    while index < len(instructions) and instructions[index].opname in _ATTRIBUTES:
        attributes.append(str(instructions[index].argval))
        index += 1
    following = [(one.opname, one.argval) for one in instructions[index : index + 4]]
    names = [opname for opname, _ in following]
    is_assigned = False
    if names[:1] == ["STORE_ATTR"]:  # a.b = …
        attributes.append(str(following[0][1]))
        is_assigned = True
    elif names[:2] in (["COPY", "LOAD_ATTR"], ["COPY", "LOAD_METHOD"]) and following[0][1] == 1:  # a.b += …
        attributes.append(str(following[1][1]))
        is_assigned = True
    elif names[1:2] == ["STORE_SUBSCR"] or names[1:4] == ["COPY", "COPY", "BINARY_SUBSCR"]:
        is_assigned = names[0].startswith("LOAD_")  # a[b] = … or a[b] += …
    if attributes == ["__class__"]:  # type(a) without an attribute
        attributes = []
    keys = () if is_assigned else _constant_keys(instructions, index)
    return Read(scope, name, tuple(attributes), keys), is_assigned


def _end_of_type_call(instructions: list[dis.Instruction], index: int) -> int:
    """Return the index after `type(a)` if `a` was loaded for it before `index`; else `index`."""
    before = instructions[index - 2] if index >= 2 else None
    if before is None or before.opname != "LOAD_GLOBAL" or before.argval != "type":
        return index
    end = index + (instructions[index].opname == "PRECALL") if index < len(instructions) else index
    is_call = end < len(instructions) and instructions[end].opname == "CALL" and instructions[end].arg == 1
    return end + 1 if is_call else index


def _constant_keys(instructions: list[dis.Instruction], index: int) -> tuple[str, ...]:
    """Return the texts with which the value that was loaded before `index` is indexed: a["b"]["c"]."""
    found: list[str] = []
    for constant, one in zip(instructions[index::2], instructions[index + 1 :: 2]):
        if (constant.opname, one.opname) != ("LOAD_CONST", "BINARY_SUBSCR") or type(
            constant.argval
        ) is not str:
            break
        found.append(constant.argval)
    return tuple(found)
