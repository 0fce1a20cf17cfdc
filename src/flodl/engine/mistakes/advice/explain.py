"""Explains torch errors that a step function raises: what the batch was, and what to change."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flodl.core import FlodlError

from ...batch.samples import num_samples
from ...batch.tree import leaves_of
from ...device.autograd_history import attribute_path
from ...errors import NoLoss, StepCallError, StepFunctionError
from ...settings import StepFunction
from ..batch_names import Named, named_tensors, order_text
from ..batch_text import batch_text
from ..empty_batch import EMPTY_BATCH_ADVICE, empty_batch
from ..no_loss import why_no_loss
from ..step_function import model_not_first, signature_mismatch, signature_text
from .batch_access import about_keys, key_of, wrong_access
from .collated_lists import collated_list
from .forward_method import advice_for_forward
from .frames import frames_of, raising_module
from .input_dtypes import DTYPES, dtype_advice
from .layer_inputs import advice_for_layer, advice_for_tuple, layer_input
from .model_call import advice_for_call, advice_for_lengths
from .model_output import advice_for_output
from .numpy_arrays import advice_for_arrays
from .targets import advice_for_targets

_TORCH_ERRORS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, AttributeError)
_TORCH_FILES = str(Path(torch.__file__).parent)

# What torch says, and which advice follows.
_DEVICES = r"same device|on the expected device|on device .* not|Expected .* device|weight type|device type"
_SHAPES = (
    r"cannot be multiplied|must match|size mismatch|to match target batch_size|Given groups|Expected \d|"
    r"expected input|must be equal to|is invalid for input of size|normalized_shape|should contain \d|"
    r"shape mismatch|Sizes of tensors|inconsistent tensor size|same size|must be the same as|"
    r"was expecting embedding dimension|shapes? .* (does|do) not match|should have consistent|"
    r"expected \dD( or \dD)? input"
)
_ORDER = r"Dimension out of range|dimension specified as|too many indices|index \d+ is out of bounds"
_ONE_VALUE = r"Expected more than 1 (value per channel|spatial element) when training"
_SECOND_BACKWARD = r"backward through the graph a second time"
_IN_PLACE = r"modified by an inplace operation"
# Torch's signal handler raises this in whatever code runs at that moment.
_DEAD_WORKER = "DataLoader worker (pid"


def explained(
    error: Exception,
    step_fn: StepFunction,
    model: nn.Module,
    batch: tuple[Any, ...],
    extra: Iterable[str],
    *,
    of_data: str = "",
    called: str = "the step function ",
) -> Exception | None:
    """Return an error that explains a mistake in calling a step, or None if the error is clear enough.

    An error of torch that is not recognized gets a note about the batch, which is one `of_data`. `called` is
    what the error says before the name of the function.

    >>> error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x3 and 4x1)")
    >>> batch = torch.zeros(8, 3), torch.zeros(8, 1)
    >>> print(explained(error, lambda model, x, y: x, nn.Linear(4, 1), batch, ()))
    mat1 and mat2 shapes cannot be multiplied (8x3 and 4x1), in the step function <lambda>(model, x, y) ...
    """
    if isinstance(error, NoLoss):
        return NoLoss(why_no_loss(step_fn, model, batch))
    if not isinstance(error, FlodlError) and (told := wrong_access(error, step_fn, batch, of_data, called)):
        return StepFunctionError(told)
    if isinstance(error, FlodlError | torch.OutOfMemoryError) or not isinstance(error, _TORCH_ERRORS):
        return None
    if isinstance(error, TypeError) and (mismatch := signature_mismatch(step_fn, batch, extra)):
        return StepCallError(mismatch)
    if isinstance(error, TypeError) and (misplaced := model_not_first(step_fn, error)):
        return StepCallError(misplaced)
    if not _is_raised_by_torch(error) or str(error).startswith(_DEAD_WORKER):
        return None
    told = str(error)
    where = (
        f"in {called}{signature_text(step_fn)}; the model has {_model_text(model)}, and the batch "
        f"{of_data}{of_data and ' '}is {batch_text(batch)}"
    )
    order = order_text(step_fn, batch)
    if empty := empty_batch(step_fn, batch):
        advice: str | None = f"{empty[0].upper()}{empty[1:]}. {EMPTY_BATCH_ADVICE}."
    else:
        advice = _advice(error, told, model, batch, named_tensors(step_fn, batch), order)
    if advice is None:
        if type(error) in (RuntimeError, IndexError, ValueError, AssertionError):
            note = f"{where[0].upper()}{where[1:]}."
            error.add_note(f"{note} In this call, {order}." if order else note)
        return None
    first = re.split(r"\n| \(or directly|, but expected one of:", told)[0].rstrip(".!")
    is_of_layer = re.search(_ONE_VALUE, told) or (re.search(_SHAPES, told) and layer_input(error, model))
    layer = raising_module(error, model) if is_of_layer else None
    return StepFunctionError(f"{first}, {where}. {advice}", path=layer[0] if layer else "")


def _advice(
    error: Exception, told: str, model: nn.Module, batch: tuple[Any, ...], named: Named, order: str
) -> str | None:
    """Return what to change, or None if the message is not known."""
    leaves = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]
    if output := advice_for_output(told, error, model, batch):
        return output
    if forward := advice_for_forward(told, error, model, batch):
        return forward
    if call := advice_for_call(told, model) or advice_for_lengths(told, error):
        return call
    if arrays := advice_for_arrays(told, error, model, batch):
        return arrays
    if re.search(_SECOND_BACKWARD, told):
        return _second_backward(model)
    if re.search(_IN_PLACE, told):
        return _in_place(model)
    if re.search(_DEVICES, told) and (moved := _other_device(model, leaves)):
        return moved
    if re.search(_ONE_VALUE, told):
        return _one_value(told, batch)
    if re.search(r"must be (a )?Tensor, not|must be Tensor", told):
        return _not_a_tensor(told, error, model, batch)
    if re.search(DTYPES, told):
        advice = dtype_advice(told, error, model, named)
        is_mixed = len({leaf.is_floating_point() for leaf in leaves}) > 1
        return f"{advice} Check the order of the arguments, too: {order}." if order and is_mixed else advice
    if targets := advice_for_targets(told, named):
        return targets
    if re.search(_SHAPES, told) and (found := layer_input(error, model)):
        return advice_for_layer(*found[1:], named, order)
    if re.search(_SHAPES, told) or (order and re.search(_ORDER, told)):
        return f"Check the order of the arguments and their shapes{order and ': '}{order}."
    return None


def _one_value(told: str, batch: tuple[Any, ...]) -> str:
    """Return the advice for a norm, which cannot train on a single value."""
    advice = "Use larger batches or inputs, or a different norm, such as nn.GroupNorm."
    if num_samples(batch) == 1 and "per channel" in told:
        return (
            "This batch has 1 sample, and batch norm needs at least 2 in training. If it is the last batch "
            "of an epoch, leave it out: Loader(…, drop_last=True), or tail='drop' for a TrainStep or a "
            f"Trainer. If all batches have 1 sample: {advice[0].lower()}{advice[1:]}"
        )
    return f"The norm needs more than one value for each channel in training. {advice}"


def _not_a_tensor(told: str, error: Exception, model: nn.Module, batch: tuple[Any, ...]) -> str:
    """Return the advice for a model or loss that gets something other than a tensor."""
    mapping = next((part for part in batch if isinstance(part, Mapping)), None)
    if "not str" in told:
        seen = [value for frame in frames_of(error) for value in frame.f_locals.values()]
        unpacked = next((found for value in seen if (found := key_of(batch, value))), None)
        if unpacked is not None:
            return about_keys(unpacked)
    if mapping is not None and re.search(r"not \w*([Dd]ict|Mapping|Encoding)", told):
        name = next((repr(key) for key, value in mapping.items() if isinstance(value, Tensor)), "'x'")
        return (
            f"The batch is a dict: pass its parts to the model, as in model(batch[{name}]) or model(**batch)."
        )
    if re.search(r"not (list|tuple)\b", told):
        if advice := collated_list(batch):
            return advice
        lists = [part for part in batch if isinstance(part, list | tuple)]
        if any(isinstance(item, Tensor) for part in lists for item in part):
            return (
                "A part of the batch contains several tensors: pass them to the model one by one, as in x[0]."
            )
    others = [leaf for leaf in leaves_of(batch) if not isinstance(leaf, Tensor)]
    if not others and (advice := advice_for_tuple(error, model)):
        return advice
    if "not str" in told or (others and all(isinstance(leaf, str) for leaf in others)):
        return "Models take numbers: encode texts as tensors, for example with a tokenizer."
    is_numeric = all(isinstance(leaf, bool | int | float | np.ndarray) for leaf in others)
    if is_numeric and re.search(r"not (list|tuple|bool|int|float|(numpy\.)?ndarray)\b", told):
        return "Convert the batch to tensors: torch.as_tensor(x)."
    return "Pass a tensor."


def _in_place(model: nn.Module) -> str:
    kept = _kept_history(model)
    return (
        "The backward pass needs a value that was changed after it was used. Find the operation that changes "
        "it: x += 1 and x[i] = y write to x, and so do functions such as relu_() and modules with "
        "inplace=True. Write x = x + 1, or use a copy in the forward pass: x.clone(). A buffer that is "
        f"updated after its use, such as a queue, needs the copy.{kept and ' '}{kept}"
    )


def _second_backward(model: nn.Module) -> str:
    return _kept_history(model) or (
        "Either the step function calls backward() itself: remove that call and just return the loss. Or "
        "something keeps its autograd history from one call to the next: store it with .detach(), or call "
        "graph.detach_state() for a flodl graph outside the model."
    )


def _kept_history(model: nn.Module) -> str:
    """Return the advice for an attribute of the model that has an autograd history, or ""."""
    kept = next((path for path in _attributes_with_history(model) if path), "")
    return kept and (
        f"The attribute {kept!r} of the model keeps its autograd history from one call to the next. "
        "Store it without: self.state = state.detach(). For a flodl graph, call detach_state()."
    )


def _attributes_with_history(model: nn.Module) -> Iterable[str]:
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                yield attribute_path(value, model)


def _other_device(model: nn.Module, leaves: list[Tensor]) -> str | None:
    expected = next((p.device for p in model.parameters()), None)
    others = sorted({str(leaf.device) for leaf in leaves if leaf.device != expected})
    if expected is None or not others:
        return None
    return (
        f"The model is on {expected}, and the batch on {', '.join(others)}. Move the batch before the step, "
        f"x.to({str(expected)!r}), or let a flodl.Loader do it."
    )


def _is_raised_by_torch(error: Exception) -> bool:
    """Return whether an error comes from torch, not from a `raise` in other code."""
    traceback = error.__traceback__
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    is_raise = code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return code.co_filename.startswith(_TORCH_FILES) or not is_raise


def _model_text(model: nn.Module) -> str:
    kinds = {f"{p.dtype} parameters on {p.device}".removeprefix("torch.") for p in model.parameters()}
    return " and ".join(sorted(kinds)) or "no parameters"
