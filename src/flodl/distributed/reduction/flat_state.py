"""The weights of a model as one flat vector."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core.errors import DistributedError


class FlatState:
    """The parameters and then the float buffers of a model as one flat vector on their device.

    The vector is float32, or float64 if one of the tensors is. Integer and bool tensors are a separate vector
    of int64. A tensor that occurs twice counts once. Tensors keep their addresses.

    >>> model = nn.Linear(2, 1)
    >>> state = FlatState.of(model)
    >>> state.size, state.num_parameters
    (3, 3)
    >>> state.write(torch.tensor([1.0, 2.0, 3.0]))
    >>> model.bias
    Parameter containing:
    tensor([3.], requires_grad=True)
    >>> state.read(state.empty())
    tensor([1., 2., 3.])
    """

    def __init__(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor] = (), *, names: Sequence[str] = ()
    ) -> None:
        given = [*parameters, *buffers]
        names = names or [f"tensor {index}" for index in range(len(given))]
        views = [_real_view(tensor, name) for tensor, name in zip(given, names)]
        self._given, self._names, self._all = given, names, views
        self._addresses = [tensor.data_ptr() for tensor in given]
        kept = _unique(views)
        is_parameter = [index < len(parameters) for index in range(len(given))]
        floats = [index for index in kept if views[index].is_floating_point()]
        self._floats = [views[index] for index in floats]
        self._integers = [views[index] for index in kept if not views[index].is_floating_point()]
        sizes = [tensor.numel() for tensor in self._floats]
        self.size = sum(sizes)
        self.num_parameters = sum(size for size, index in zip(sizes, floats) if is_parameter[index])
        self.num_integers = sum(tensor.numel() for tensor in self._integers)
        is_double = any(tensor.dtype == torch.float64 for tensor in self._floats)
        self.dtype = torch.float64 if is_double else torch.float32
        # True once a reduction has met parameters with infinite constants, which make no progress.
        self.has_constants = False
        first = self._floats or self._integers
        self.device = first[0].device if first else torch.device("cpu")

    @classmethod
    def of(cls, model: nn.Module) -> FlatState:
        """The state of a model, including buffers that its state dict does not contain."""
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        return cls([*parameters.values()], [*buffers.values()], names=[*parameters, *buffers])

    @property
    def layout(self) -> str:
        """A short hash of shapes and dtypes; replicas have the same one."""
        found = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in [*self._floats, *self._integers]]
        return hashlib.sha256(repr(found).encode()).hexdigest()[:16]

    def empty(self) -> Tensor:
        """Return an uninitialized vector."""
        return torch.empty(self.size, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def read(self, out: Tensor) -> Tensor:
        """Copy the current values to `out`, without waiting for the device."""
        self._check_addresses()
        _copy(_views(out, self._floats), self._floats)
        return out

    def _check_addresses(self) -> None:
        if self._addresses == [tensor.data_ptr() for tensor in self._given]:
            return
        for tensor, address, name in zip(self._given, self._addresses, self._names):
            if tensor.data_ptr() != address:
                raise DistributedError(
                    "the tensor moved to other memory since training on ranks began, so it is not averaged. "
                    "Move or replace tensors (model.to, load_state_dict with assign) before that.",
                    path=name,
                )

    @torch.no_grad()
    def write(self, flat: Tensor) -> None:
        """Copy a vector to the tensors, in place."""
        _copy(self._floats, _views(flat, self._floats))

    @torch.no_grad()
    def read_integers(self) -> Tensor:
        """Return the values of integer and bool tensors."""
        out = torch.empty(self.num_integers, dtype=torch.int64, device=self.device)
        _copy(_views(out, self._integers), self._integers)
        return out

    @torch.no_grad()
    def write_integers(self, values: Tensor) -> None:
        """Copy integers to the tensors, in place."""
        _copy(self._integers, _views(values, self._integers))

    @torch.no_grad()
    def tensors(self, flat: Tensor, integers: Tensor) -> list[Tensor]:
        """Return what the parameters and buffers would be with these values, in the order they were given."""
        found = dict(zip(map(_place, self._floats), _views(flat, self._floats)))
        found |= dict(zip(map(_place, self._integers), _views(integers, self._integers)))
        copies = [torch.empty_like(tensor.detach()) for tensor in self._given]
        for copy, view in zip(copies, self._all):
            target = torch.view_as_real(copy) if copy.is_complex() else copy
            if view.numel():
                target.copy_(found[_place(view)])
        return copies

    @torch.no_grad()
    def round_(self, flat: Tensor) -> Tensor:
        """Round a vector in place to what the tensors can hold: bfloat16 parameters hold fewer bits."""
        for view, tensor in zip(_views(flat, self._floats), self._floats):
            if tensor.dtype != flat.dtype:
                view.copy_(view.to(tensor.dtype))
        return flat


def _real_view(tensor: Tensor, name: str) -> Tensor:
    """Return a view with real numbers, in which each element has its own memory."""
    if is_lazy(tensor):
        raise DistributedError(
            "ranks cannot average a parameter without a shape. Call the model once before training.",
            path=name,
        )
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise DistributedError(
            f"ranks cannot average a {tensor.dtype} tensor with layout {tensor.layout} on device "
            f"{tensor.device}. Expected a dense tensor with values.",
            path=name,
        )
    tensor = tensor.detach()
    view = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    for dim, (size, stride) in enumerate(zip(view.shape, view.stride())):
        if size > 1 and stride == 0:
            view = view.narrow(dim, 0, 1)
    return view


def _place(view: Tensor) -> tuple[object, ...]:
    return view.data_ptr(), view.dtype, tuple(view.shape), view.stride()


def _unique(views: list[Tensor]) -> list[int]:
    """Return the indices of the tensors that do not repeat an earlier one."""
    seen: set[object] = set()
    kept = []
    for index, view in enumerate(views):
        where = _place(view) if view.numel() else index
        if where not in seen:
            seen.add(where)
            kept.append(index)
    return kept


def _views(flat: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    views, start = [], 0
    for tensor in tensors:
        views.append(flat[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()
    return views


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
