"""Advice for a layer of torch whose input has the wrong shape: what it takes, what it got, what to write."""

from __future__ import annotations

from math import prod
from types import FrameType

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from flodl.core.formats import a_type

from ..batch_names import Named, base_of
from .frames import frames_of, raising_module

# These return their output and a state, or the weights of the attention.
_RETURN_TUPLES = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention)
_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}


def layer_input(error: BaseException, model: nn.Module) -> tuple[str, nn.Module, Tensor] | None:
    """Return the layer of torch that raised an error, with its path in the model and its input.

    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> try:
    ...     model(Tensor(3, 5))
    ... except RuntimeError as error:
    ...     path, layer, given = layer_input(error, model)
    >>> path, given.shape
    ('0', torch.Size([3, 5]))
    """
    found = raising_module(error, model)
    if found is None or not type(found[1]).__module__.startswith("torch.nn."):
        return None
    path, layer = found
    for frame in frames_of(error):
        code, seen = frame.f_code, frame.f_locals
        if code.co_name == "forward" and seen.get("self") is layer and code.co_argcount > 1:
            given = seen.get(code.co_varnames[1])
            return (path, layer, given) if isinstance(given, Tensor) else None
    return None


def advice_for_tuple(error: BaseException, model: nn.Module) -> str:
    """Return what to change if a layer of torch got a tuple that another layer returns, or "".

    >>> model = nn.Sequential(nn.GRU(2, 3), nn.Linear(3, 1))
    >>> try:
    ...     model(Tensor(4, 5, 2))
    ... except TypeError as error:
    ...     advice_for_tuple(error, model)[:58]
    "The Linear at '1' gets a tuple: the GRU at '0' returns a t"
    """
    found = raising_module(error, model)
    if found is None or not type(found[1]).__module__.startswith("torch.nn."):
        return ""
    path, layer = found
    given = next((frame.f_locals.get("input") for frame in frames_of(error) if _is_call(frame, layer)), None)
    if not isinstance(given, tuple):
        return ""
    told = f"The {type(layer).__name__}{f' at {path!r}' if path else ''} gets {a_type(given)}"
    sources = [(name, one) for name, one in model.named_modules() if isinstance(one, _RETURN_TUPLES)]
    if len(sources) == 1:
        name, source = sources[0]
        told += f": the {type(source).__name__} at {name!r} returns a tuple of its output and other values"
    return (
        f"{told}. Pass only the first element, as in output, _ = gru(x). An nn.Sequential cannot do that: "
        "put a small module around it, or use a flodl graph: .through(nn.GRU(…)).through(lambda out: out[0])."
    )


def _is_call(frame: FrameType, layer: nn.Module) -> bool:
    return frame.f_code.co_name == "forward" and frame.f_locals.get("self") is layer


def advice_for_layer(layer: nn.Module, given: Tensor, named: Named, order: str) -> str:
    """Return what to change if a layer got this input; `named` and `order` are the tensors of the batch.

    >>> advice_for_layer(nn.Linear(5, 2), Tensor(8, 4), [], "")
    'This Linear takes 5 features, and its input has shape [8, 4]. Write nn.Linear(4, 2), or change its ...'
    """
    if isinstance(layer, nn.Linear):
        is_of_samples = given.dim() == 1 and any(given.shape == one.shape[:1] for _, one in named)
        advice = _of_samples(layer, given, order) if is_of_samples else _of_linear(layer, given)
    elif isinstance(layer, _ConvNd):
        advice = _of_convolution(layer, given)
    elif isinstance(layer, _BatchNorm):
        advice = _of_batch_norm(layer, given)
    else:
        advice = _told(layer, "", given)
    if order and _would_fit(layer, given, named):
        advice += f" Check the order of the arguments, too: {order}."
    return advice


def _of_samples(layer: nn.Linear, given: Tensor, order: str) -> str:
    size = layer.in_features
    if size == 1:
        return _of_linear(layer, given)
    advice = f"It has one number per sample, and {size} are needed: [{given.shape[0]}, {size}]."
    advice += f" Check the order of the arguments: {order}." if order else " Change the input."
    return _told(layer, f"takes {size} features", given, advice)


def _of_linear(layer: nn.Linear, given: Tensor) -> str:
    size = layer.in_features
    takes = f"takes {size} feature{'s' * (size != 1)}"
    if given.dim() > 2 and prod(given.shape[1:]) == size:
        return _told(layer, takes, given, "Flatten the input first, with nn.Flatten() or x.flatten(1).")
    if given.dim() == 1 and size == 1:
        return _told(layer, takes, given, "Add the dimension of the features: x.unsqueeze(1).")
    return _told(layer, takes, given, _write(layer, f"{given.shape[-1]}, {layer.out_features}"))


def _of_convolution(layer: _ConvNd, given: Tensor) -> str:
    num_axes, channels = len(layer.kernel_size), layer.in_channels
    takes = f"takes [N, {channels}, {_AXES[num_axes]}]"
    if given.dim() == num_axes + 1 and channels == 1:
        return _told(layer, takes, given, "Add the dimension of the channel: x.unsqueeze(1).")
    if given.dim() != num_axes + 2:
        return _told(layer, takes, given, "Reshape it, with unflatten or reshape for example.")
    if given.shape[-1] == channels != given.shape[1]:
        axes = ", ".join(map(str, range(1, num_axes + 1)))
        return _told(
            layer, takes, given, f"Its channels are last: pass x.permute(0, {num_axes + 1}, {axes})."
        )
    return _told(layer, takes, given, _write(layer, f"{given.shape[1]}, {layer.out_channels}, …"))


def _of_batch_norm(layer: _BatchNorm, given: Tensor) -> str:
    takes = f"normalizes {layer.num_features} channel{'s' * (layer.num_features != 1)} (dimension 1)"
    fits = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}.get(given.dim(), "")
    if type(layer) is nn.BatchNorm2d and given.dim() == 3:
        advice = (
            "Add the dimension that is missing: x.unsqueeze(1) for images with one channel, x[None] for a "
            "single image."
        )
        return _told(layer, takes, given, advice)
    if fits and type(layer).__name__.startswith("BatchNorm") and type(layer).__name__ != fits:
        advice = f"For an input of {given.dim()} dimensions, write nn.{fits}({given.shape[1]})."
        return _told(layer, takes, given, advice)
    size = given.shape[1] if given.dim() > 1 else "…"
    return _told(layer, takes, given, _write(layer, str(size)))


def _told(layer: nn.Module, takes: str, given: Tensor, advice: str = "") -> str:
    kind, shape = type(layer).__name__, [*given.shape]
    what = f"This {kind} {takes}, and its input has" if takes else f"The input of this {kind} has"
    return f"{what} shape {shape}. {advice or 'Change the layer to accept it, or change its input.'}"


def _write(layer: nn.Module, arguments: str) -> str:
    return f"Write nn.{type(layer).__name__}({arguments}), or change its input."


def _would_fit(layer: nn.Module, given: Tensor, named: Named) -> bool:
    """Return whether the layer got a tensor of the batch, and has the size for another one."""
    sizes = {layer.in_features} if isinstance(layer, nn.Linear) else set()
    is_batch = any(base_of(given) is base_of(one) for _, one in named)
    others = [one for _, one in named if base_of(one) is not base_of(given)]
    return is_batch and any(one.dim() > 1 and one.shape[-1] in sizes for one in others)
