"""The time that the pickle of a `torch.save` file takes to build, estimated without building anything.

A tuple can contain another one several times, and its hash visits all of them: forty opcodes can stand for
hours of work as the key of a dict, during which the program cannot even be interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator

# The opcodes that torch's restricted unpickler accepts.
_MARK, _PERSID = b"("[0], b"Q"[0]
_TUPLE, _SIZED_TUPLES = b"t"[0], {0x85: 1, 0x86: 2, 0x87: 3}
_POPS = {b"R"[0]: 1, 0x81: 1, b"b"[0]: 1, b"a"[0]: 1, b"s"[0]: 2}
_POPS_TO_MARK = {b"e"[0], b"u"[0]}
_GETS, _PUTS = {b"h"[0]: 1, b"j"[0]: 4}, {b"q"[0]: 1, b"r"[0]: 4}
# Opcodes that push something, with the length of their argument, or of the length of it.
_PUSHES = dict.fromkeys(b"N)]}\x88\x89\x8f", 0) | {b"J"[0]: 4, b"K"[0]: 1, b"M"[0]: 2, b"G"[0]: 8}
_PUSHES_STRING = {b"X"[0]: 4, b"U"[0]: 1, 0x8A: 1}
_GLOBAL, _PROTO = b"c"[0], 0x80


def check_cost(pickle: bytes, *, free: int = 1_000_000, per_byte: int = 100) -> None:
    r"""Raise ValueError if nested tuples have many times more items than the pickle has bytes.

    >>> doubled = b"\x80\x02}K\x01\x85" + b"q\x01h\x01\x86" * 40 + b"K\x01s."
    >>> check_cost(doubled)
    Traceback (most recent call last):
    ValueError: its tuples are nested so that 210 bytes stand for more than 1021000 items
    """
    limit = free + per_byte * len(pickle)
    try:
        is_costly = any(cost > limit for cost in _costs(pickle))
    except (LookupError, ValueError):
        return  # torch raises, too
    if is_costly:
        raise ValueError(
            f"its tuples are nested so that {len(pickle)} bytes stand for more than {limit} items"
        )


def _costs(pickle: bytes) -> Iterator[int]:
    """Yield the number of items in all tuples so far, after each opcode that adds some."""
    # The number of items in each value on the stack, the marked stacks below, and the stored values.
    stack: list[int] = []
    below: list[list[int]] = []
    memo: dict[int, int] = {}
    total = position = 0
    while True:
        code = pickle[position]
        position += 1
        if code in _PUTS:
            size = _PUTS[code]
            memo[int.from_bytes(pickle[position : position + size], "little")] = stack[-1]
            position += size
        elif code in _GETS:
            size = _GETS[code]
            stack.append(memo[int.from_bytes(pickle[position : position + size], "little")])
            position += size
            total += stack[-1]
            yield total
        elif code in _PUSHES:
            stack.append(1)
            position += _PUSHES[code]
        elif code in _PUSHES_STRING:
            size = _PUSHES_STRING[code]
            stack.append(1)
            position += size + int.from_bytes(pickle[position : position + size], "little")
        elif code == _MARK:
            below.append(stack)
            stack = []
        elif code == _TUPLE or code in _SIZED_TUPLES:
            if code == _TUPLE:
                items, stack = stack, below.pop()
            else:
                items = stack[-_SIZED_TUPLES[code] :]
                del stack[-_SIZED_TUPLES[code] :]
            stack.append(1 + sum(items))
            total += stack[-1]
            yield total
        elif code in _POPS_TO_MARK:
            stack = below.pop()
        elif code in _POPS:
            del stack[-_POPS[code] :]
        elif code == _GLOBAL:
            position = pickle.index(b"\n", pickle.index(b"\n", position) + 1) + 1
            stack.append(1)
        elif code == _PROTO:
            position += 1
        elif code == _PERSID:
            stack[-1] = 1
        else:  # the end, or something that torch does not accept
            return
