"""Adam for recordings, with launches that fill the device; equal to torch's fused Adam bit for bit.

Torch's fused kernel assigns 65,536 elements to each thread block, so that a model of a million parameters
keeps a tenth of a large GPU busy: 36 µs on an H200 instead of 8.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer, lr_scheduler

from flodl.core import log

from ..mistakes import optimizer_calls
from ..mistakes.optimizer_calls import WatchedMethod

# Elements per block for models of up to _LARGE parameters, and above.
_SMALL_BLOCK, _LARGE_BLOCK, _LARGE = 512, 1024, 1 << 24
_NUM_WARPS = 4
# Triton's eviction policy for the caches: "" or "evict_first".
_EVICTION = ""
_ALIGNED = 16
# The files whose wrappers of `step` only watch its calls.
_ONLY_WATCH = (lr_scheduler.__file__, optimizer_calls.__file__)
# A parameter, its state and its group.
_Entry = tuple[Tensor, dict[str, Any], dict[str, Any]]


class FastAdam:
    """The update of all parameters of an Adam optimizer, recorded once; created by `fast_adam`."""

    def __init__(
        self,
        optimizer: Optimizer,
        bad: Tensor,
        num_skipped: Tensor,
        *,
        checks_gradients: bool,
        size: int | None = None,
    ) -> None:
        self._bad, self._num_skipped = bad, num_skipped
        # Whether the kernels set `bad` if a gradient is not finite.
        self.checks_gradients = checks_gradients
        self._entries: list[_Entry] = [
            (parameter, optimizer.state.get(parameter, {}), group)
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        total = sum(parameter.numel() for parameter, _, _ in self._entries)
        # The elements of one block.
        self.size = size or (_SMALL_BLOCK if total <= _LARGE else _LARGE_BLOCK)
        blocks = sum(-(-parameter.numel() // self.size) for parameter, _, _ in self._entries)
        count = len(self._entries)
        int64 = partial(torch.zeros, dtype=torch.int64, device=bad.device)
        float32 = partial(torch.zeros, dtype=torch.float32, device=bad.device)
        # A recording uses their data pointers; their contents are written after it has ended.
        self._pointers = int64(count, 2)
        self._settings = float32(count, 4)
        self._betas = float32(count, 2)
        self._counts, self._powers = float32(count, 1), torch.zeros_like(self._betas)
        self.rows = int64(blocks, 6)
        # Each table, with the contents that are written into it.
        self.contents: list[tuple[Tensor, Tensor]] = []

    def gather(self) -> bool:
        """Collect the data pointers of parameters with gradients; return False if one is unsupported."""
        entries = [entry for entry in self._entries if entry[0].grad is not None]
        if not entries or not all(fits_kernels(*entry, self._bad.device) for entry in entries):
            return False
        # Each gradient is scaled once, and blocks run in any order.
        grads = [parameter.grad for parameter, _, _ in entries if parameter.grad is not None]
        if len({grad.data_ptr() for grad in grads}) < len(grads):
            return False
        # On the CPU, whatever the default device is: a copy to the device cannot be recorded.
        with torch.device("cpu"):
            self.contents = self._table_contents(entries)
        return True

    def _table_contents(self, entries: list[_Entry]) -> list[tuple[Tensor, Tensor]]:
        pointers = [(state["step"].data_ptr(), group["lr"].data_ptr()) for _, state, group in entries]
        numbers = [(*group["betas"], group["eps"], group["weight_decay"]) for _, _, group in entries]
        settings = torch.tensor(numbers, dtype=torch.float32)
        rows = torch.cat([self._blocks(index, *entry[:2]) for index, entry in enumerate(entries)])
        return [
            (self._pointers[: len(entries)], torch.tensor(pointers)),
            (self._settings[: len(entries)], settings),
            (self._betas[: len(entries)], settings[:, :2]),
            (self.rows[: len(rows)], rows),
        ]

    def write_tables(self) -> None:
        """Write the tables that the kernels read, which is impossible during a recording."""
        for table, contents in self.contents:
            table.copy_(contents)

    def run(self, scale: Tensor | None = None) -> None:
        """Launch the kernels on what was gathered; gradients are multiplied by `scale` first."""
        from .adam_kernels import begin, begin_with_check, update

        num_parameters, num_blocks = len(self.contents[0][1]), len(self.contents[-1][1])
        block = {"SIZE": self.size, "num_warps": _NUM_WARPS}
        counts = self._counts
        if self.checks_gradients:
            begin_with_check[(num_blocks,)](self.rows, self._pointers, counts, self._bad, **block)
        else:
            begin[(num_parameters,)](self._pointers, counts, num_warps=1)
        # Torch's pow, which differs from Triton's in the last bit.
        torch.pow(self._betas, counts, out=self._powers)
        tables = self.rows, self._pointers, self._settings, counts, self._powers
        update[(num_blocks,)](*tables, self._bad, self._num_skipped, scale, EVICTION=_EVICTION, **block)

    def _blocks(self, index: int, parameter: Tensor, state: dict[str, Any]) -> Tensor:
        """Return a row for each block of a parameter: data pointers, index of the parameter, length.

        The length of its first block is negative.
        """
        assert parameter.grad is not None
        starts = torch.arange(0, parameter.numel(), self.size)
        tensors = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        columns = [tensor.data_ptr() + tensor.element_size() * starts for tensor in tensors]
        counts = (parameter.numel() - starts).clamp(max=self.size)
        counts[0].neg_()
        return torch.stack([*columns, torch.full_like(starts, index), counts], dim=1)


def fast_adam(
    optimizer: Optimizer, bad: Tensor, num_skipped: Tensor, *, checks_gradients: bool
) -> FastAdam | None:
    """Return the fast update of an optimizer for a recording; None if it is not supported.

    With `checks_gradients`, it also sets `bad` if a gradient is not finite.
    """
    if type(optimizer) not in (Adam, AdamW) or not bad.is_cuda or bad.dtype is not torch.float32:
        return None
    if not has_torch_step(optimizer) or not all(map(is_supported_group, optimizer.param_groups)):
        return None
    adam = FastAdam(optimizer, bad, num_skipped, checks_gradients=checks_gradients)
    # Triton launches on the current device, whatever the tensors are on.
    with torch.cuda.device(bad.device):
        return adam if matches_torch(bad.device, adam.size) else None


def has_torch_step(optimizer: Optimizer) -> bool:
    """Return whether `step` is torch's own method; schedulers and a `TrainStep` wrap it to watch calls.

    >>> optimizer = Adam([torch.nn.Parameter(torch.zeros(1))])
    >>> schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    >>> has_torch_step(optimizer), setattr(optimizer, "step", print), has_torch_step(optimizer)
    (True, None, False)
    """
    own, original = vars(optimizer).get("step"), type(optimizer).step
    while own is not None and own is not original:
        # Other wrappers may do anything, also those that look like these because of `functools.wraps`.
        code = getattr(own, "__code__", None)
        if not isinstance(own, WatchedMethod) and (code is None or code.co_filename not in _ONLY_WATCH):
            return False
        own = own.__wrapped__
    return True


def is_supported_group(group: dict[str, Any]) -> bool:
    """Return whether a group uses torch's fused kernel in the form implemented here."""
    numbers = (*group["betas"], group["eps"], group["weight_decay"])
    is_known = group.get("fused") and not group["amsgrad"] and not group["maximize"]
    decays = group["weight_decay"] != 0 and not group.get("decoupled_weight_decay")
    if not is_known or decays or not all(isinstance(number, float | int) for number in numbers):
        return False
    # For betas of at least one half, 1 - beta is exact, so the order of the multiplication does not matter.
    return bool(min(group["betas"]) >= 0.5)


def fits_kernels(
    parameter: Tensor, state: dict[str, Any], group: dict[str, Any], device: torch.device
) -> bool:
    """Return whether a parameter, its gradient and state are float32 on a device, with the same layout."""
    if not all(_is_float32_on(number, device) for number in (state.get("step"), group["lr"])):
        return False
    alike: list[Any] = [parameter, parameter.grad, state.get("exp_avg"), state.get("exp_avg_sq")]
    if not _is_dense(parameter) or not all(_is_float32_on(tensor, device) for tensor in alike):
        return False
    return all(
        _strides(tensor) == _strides(parameter) and tensor.data_ptr() % _ALIGNED == 0 for tensor in alike
    )


def _is_float32_on(tensor: Any, device: torch.device) -> bool:
    """Return whether this is a plain float32 tensor on a device, not a subclass with other storage."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype is torch.float32
        and tensor.device == device
    )


def _strides(tensor: Any) -> list[int]:
    """Return the strides of dimensions longer than one.

    >>> weight = torch.zeros(8, 4, 1, 1)
    >>> _strides(weight.to(memory_format=torch.channels_last)), _strides(weight)
    ([4, 1], [4, 1])
    """
    return [stride for stride, length in zip(tensor.stride(), tensor.shape) if length > 1]


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor occupies its memory without gaps.

    >>> _is_dense(torch.zeros(3, 4).t()), _is_dense(torch.zeros(3, 4)[:, :2])
    (True, False)
    """
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return tensor.numel() > 0


@cache
def matches_torch(device: torch.device, size: int) -> bool:
    """Return whether the kernels equal torch's bit for bit; other versions of torch may round differently.

    This also loads the kernels, which is impossible during a recording.
    """
    try:
        ours, theirs = (_train(device, size, fast=fast) for fast in (True, False))
    except Exception as error:
        log.debug("using torch's own Adam: %s: %s", type(error).__name__, error)
        return False
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(ours, theirs))


def _train(device: torch.device, size: int, *, fast: bool) -> list[Tensor]:
    """Return parameters, state and gradients after updates with fixed numbers."""
    generator = torch.Generator(device).manual_seed(0)
    float32 = partial(torch.zeros, dtype=torch.float32, device=device)

    def draw(count: int) -> Tensor:
        scale = float32(count).uniform_(-95, 5, generator=generator).exp_()
        return torch.empty_like(scale).normal_(generator=generator) * scale

    # Sizes and earlier update counts of the parameters, one of them with weight decay.
    counts = {64 * size: 3, size // 2 + 3: 10, size: 700, 5: 20_000}
    parameters = [torch.nn.Parameter(draw(count)) for count in counts]
    rate = float32(()).fill_(1e-3)
    groups = [{"params": [p], "weight_decay": 0.1 * (p.numel() == size)} for p in parameters]
    optimizer = AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True, capturable=True)
    bad, skipped = float32(()), float32(()).double()
    # The gradients of all updates.
    drawn: list[Tensor] = []
    # What gradients are multiplied by. The last two updates are skipped; the very last because of a gradient.
    for number, clip in enumerate((None, None, 0.37, 1.0, 0.37, None)):
        grads = [draw(count) for count in counts]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        bad.fill_(number == 4 or (number == 5 and not fast))
        if number == 5:
            grads[0][-1] = torch.nan
        if number == 1:
            for parameter, before in zip(parameters, counts.values()):
                optimizer.state[parameter]["step"].fill_(before)
        scale = None if clip is None else float32(()).fill_(clip)
        if fast and number > 0:
            adam = FastAdam(optimizer, bad, skipped, checks_gradients=number == 5, size=size)
            adam.gather()
            adam.write_tables()
            adam.run(scale)
        else:
            if scale is not None:
                torch._foreach_mul_(grads, scale)
            # The first update creates the state.
            optimizer.found_inf, optimizer.grad_scale = bad, None  # type: ignore[attr-defined]
            optimizer.step()
        drawn += grads
    states = [value for p in parameters for value in optimizer.state[p].values()]
    return [*(p.detach() for p in parameters), *states, *drawn, bad]
