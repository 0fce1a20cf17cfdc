"""Step functions that misread the batch: wrong keys, wrong attributes, or an extra tuple to unpack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from flodl.core.formats import a_type
from flodl.core.paths import did_you_mean, nearest

from ...settings import StepFunction
from ..batch_names import order_text, parameter_names
from ..batch_text import batch_text, keys_text
from ..step_function import signature_text
from .collated_lists import collated_list
from .frames import frames_of
from .operands import operand_of

_PARTS_OF_OUTPUTS = ("logits", "last_hidden_state", "pooler_output", "prediction_logits", "start_logits")


def wrong_access(
    error: Exception, step_fn: StepFunction, batch: tuple[Any, ...], of_data: str, called: str
) -> str:
    """Return what is wrong with how the batch is read, or "" if the error is not about the batch.

    It is only if the object that has no such key or attribute, or cannot be unpacked, is part of the batch.
    """
    the_batch = f"the batch {of_data}".rstrip()
    at = f"in {called}{signature_text(step_fn)}"
    if (strings := _strings(batch)) and {*strings} == {*parameter_names(step_fn)}:
        return (
            f"the parts of {the_batch} are the strings {' and '.join(map(repr, batch))}, {at}. Unpacking a "
            "dict with * gives its keys. Write step(**batch)."
        )
    if isinstance(error, KeyError) and error.args:
        mapping = _part_of(batch, _subscripted(error))
        key = error.args[0]
        return f"{the_batch} has no key {key!r}, {at}. {_keys(mapping, key)}" if mapping else ""
    if isinstance(error, AttributeError) and error.name:
        mapping = _part_of(batch, error.obj)
        if mapping:
            told = f"{the_batch} is {a_type(error.obj)}, which has no attribute {error.name!r}, {at}"
            return f"{told}. {_as_item(mapping, error.name)}"
        if isinstance(error.obj, list | tuple) and (advice := collated_list(batch, error.obj)):
            return f"{error}, {at}; the batch is {batch_text(batch)}. {advice}"
        if isinstance(error.obj, Tensor) and error.name in _PARTS_OF_OUTPUTS:
            return (
                f"{error}, {at}. The model returns a tensor, not an object with attributes as models "
                f"from transformers do: remove .{error.name}."
            )
        mapping = key_of(batch, error.obj)
        if mapping and hasattr(Tensor, error.name):
            return f"a key of {the_batch}, {error.obj!r}, is used as a tensor, {at}. {about_keys(mapping)}"
        return ""
    if isinstance(error, ValueError) and re.search(r"values to unpack", str(error)):
        return _wrong_unpacking(error, step_fn, batch, at)
    return ""


def _strings(batch: tuple[Any, ...]) -> list[str]:
    """Return the parts of a batch of strings; an empty list if some are something else."""
    strings = [part for part in batch if isinstance(part, str)]
    return strings if len(strings) == len(batch) else []


def about_keys(mapping: Mapping[Any, Any]) -> str:
    """Return the advice for a dict whose keys were taken for its values."""
    first, *others = map(repr, mapping)
    second = f", batch[{others[0]}]" if others else ""
    return (
        "The batch is a dict, and a dict that is unpacked or iterated gives its keys "
        f"({keys_text(mapping)}). Read its values: {'x, y' if others else 'x'} = batch[{first}]{second}."
    )


def key_of(batch: Any, value: Any) -> Mapping[Any, Any] | None:
    """Return the dict in a batch that has this string as a key, if there is one."""
    if not isinstance(value, str):
        return None
    return next((mapping for mapping in _mappings_in(batch) if value in mapping), None)


def _keys(mapping: Mapping[Any, Any], key: Any) -> str:
    close = nearest(key, [one for one in mapping if isinstance(one, str)]) if isinstance(key, str) else []
    return f"It is a dict with the keys {keys_text(mapping)}. {did_you_mean(close)}".rstrip()


def _as_item(mapping: Mapping[Any, Any], name: str) -> str:
    example = name if name in mapping else next(iter(mapping))
    return f"Its keys are {keys_text(mapping)}: write batch[{example!r}]."


def _wrong_unpacking(error: ValueError, step_fn: StepFunction, batch: tuple[Any, ...], at: str) -> str:
    value = operand_of(error, "UNPACK")
    told = f"{error}, {at}"
    if mapping := _part_of(batch, value):
        return f"{told}. {about_keys(mapping)}"
    if not any(value is part for part in batch) or not isinstance(value, Tensor):
        return ""
    if len(batch) == 1:
        return (
            f"{told}. The batch is one tensor, {batch_text(batch)}. For two columns, pass the data as (x, y)."
        )
    names = "x, y" if len(batch) == 2 else "x, y, …"
    order = order_text(step_fn, batch)
    return (
        f"{told}. The step function receives the columns of the batch as separate arguments{order and ': '}"
        f"{order}. Write def step_fn(model, {names}), and remove the unpacking."
    )


def _part_of(batch: Any, value: Any) -> Mapping[Any, Any] | None:
    """Return the dict in a batch that a value is, or that it is a copy of, as `**batch` is."""
    if not isinstance(value, Mapping) or not value:
        return None
    for mapping in _mappings_in(batch):
        is_copy = [*mapping] == [*value] and all(mapping[key] is value[key] for key in mapping)
        if mapping is value or is_copy:
            return mapping
    return None


def _mappings_in(batch: Any) -> Iterator[Mapping[Any, Any]]:
    if isinstance(batch, Mapping):
        yield batch
        batch = [*batch.values()]
    if isinstance(batch, list | tuple):
        for part in batch:
            if isinstance(part, Mapping | list | tuple):
                yield from _mappings_in(part)


def _subscripted(error: KeyError) -> Any:
    """Return the object that does not have a key, or None if it cannot be known."""
    own = frames_of(error)[:1]
    # A mapping that is written in Python, as tokenizers return it, raises the error in its own method.
    if own and isinstance(own[0].f_locals.get("self"), Mapping):
        return own[0].f_locals["self"]
    return operand_of(error, "BINARY_")
