"""Forged bundles: valid parts with altered contents, saved (and so signed) again."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy
import torch
from torch import Tensor

Path = tuple[Any, ...]

JUNK: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 2**40,
    lambda: 2**70,
    lambda: 10**400,
    lambda: 0.5,
    lambda: float("nan"),
    lambda: float("-inf"),
    lambda: "junk",
    lambda: "",
    lambda: b"junk",
    list,
    dict,
    lambda: (),
    lambda: [[[[["deep"]]]]],
    lambda: {"a": {"b": [1, {"c": None}]}},
    lambda: {1: 2},
    lambda: torch.zeros(3),
    lambda: torch.tensor(1.5),
    lambda: torch.tensor(1j),
    lambda: torch.zeros(0, 2),
    lambda: torch.tensor([True]),
    lambda: numpy.arange(3.0),
    lambda: torch.float16,
    lambda: torch.Size([2]),
    lambda: torch.device("cpu"),
]

OTHER_DTYPES = [torch.float16, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool]


def places(state: Any, path: Path = ()) -> list[Path]:
    """Return the paths of all values in a nested state, in a fixed order."""
    found = [path] if path else []
    if isinstance(state, dict):
        for key, value in state.items():
            found += places(value, (*path, key))
    elif isinstance(state, list | tuple):
        # The state of Python's generator has 625 numbers.
        for index in [*range(len(state))][:4]:
            found += places(state[index], (*path, index))
    return found


def get(state: Any, path: Path) -> Any:
    for key in path:
        state = state[key]
    return state


def replaced(state: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """Return a copy of the containers of a state in which the value at a path is changed."""
    if not path:
        return change(state)
    key, rest = path[0], path[1:]
    if isinstance(state, dict):
        return {k: replaced(v, rest, change) if k == key else v for k, v in state.items()}
    items = [replaced(v, rest, change) if k == key else v for k, v in enumerate(state)]
    return items if isinstance(state, list) else tuple(items)


def alter_tensor(tensor: Tensor, rng: random.Random) -> Any:
    """Change the type, shape or values of a tensor."""
    return rng.choice(
        [
            lambda: tensor.to(
                rng.choice([torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool])
            ),
            lambda: tensor.to(torch.complex64),
            lambda: tensor.unsqueeze(0),
            lambda: tensor.reshape(-1)[:-1],
            lambda: torch.cat([tensor.reshape(-1)] * 2),
            lambda: tensor.reshape(-1).sum(),
            lambda: torch.full_like(tensor, rng.choice([0, 1])),
            lambda: tensor.double() * rng.choice([float("nan"), float("inf"), -1.0, 1e300]),
            lambda: tensor.tolist(),
        ]
    )()


def alter(value: Any, rng: random.Random) -> Any:
    """Return another value in place of this one."""
    kind = rng.random()
    if isinstance(value, Tensor) and kind < 0.7:
        return alter_tensor(value, rng)
    if isinstance(value, dict) and value and kind < 0.5:
        keys = list(value)
        key = rng.choice(keys)
        if kind < 0.25:
            return {k: v for k, v in value.items() if k != key}
        other = rng.choice([*keys, "extra", 7, ""])
        return {**value, other: rng.choice([value[key], rng.choice(JUNK)()])}
    if isinstance(value, list | tuple) and value and kind < 0.5:
        items = list(value)
        rng.choice([items.pop, lambda: items.append(items[0]), items.reverse])()
        return type(value)(items)
    if type(value) in (int, float) and kind < 0.3:
        return rng.choice([-value, value + 1, value * 10**6, float(value), str(value)])
    return rng.choice(JUNK)()


def forge(parts: dict[str, Any], rng: random.Random) -> tuple[dict[str, Any], str]:
    """Return altered parts, and a description of what was altered."""
    forged, done = dict(parts), []
    for _ in range(rng.choice([1, 1, 1, 2])):
        if rng.random() < 0.05:
            name = rng.choice(sorted(forged))
            del forged[name]
            done.append(f"without {name}")
            continue
        name = rng.choice(sorted(forged))
        paths = places(forged[name], (name,))
        path = rng.choice(paths)
        before = get(forged, path)
        after = alter(before, rng)
        forged = replaced(forged, path, lambda _, after=after: deepcopy(after))
        done.append(f"{path}: {before!r:.60} → {after!r:.60}")
    return forged, "; ".join(done)
