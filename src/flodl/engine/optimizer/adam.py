"""Adam inside a recording, in launches that fill the device, with the bits of torch's own.

Torch's fused kernel gives every block of threads 65 536 numbers, so that a model of a million parameters
keeps a tenth of a large GPU busy: 36 µs on an H200 where 8 would do.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from flodl.core import log

_FEW, _MANY, _LARGE = 512, 1024, 1 << 24
_ALIGNED = 16
# A parameter, its state and its group.
_Held = tuple[Tensor, dict[str, Any], dict[str, Any]]


class FastAdam:
    """The update of all parameters of an Adam, to be recorded once; made by `quick_adam`."""

    def __init__(
        self, optimizer: Optimizer, bad: Tensor, num_skipped: Tensor, *, size: int | None = None
    ) -> None:
        self._bad, self._num_skipped = bad, num_skipped
        self._held: list[_Held] = [
            (parameter, optimizer.state.get(parameter, {}), group)
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        total = sum(parameter.numel() for parameter, _, _ in self._held)
        # The numbers of one block.
        self.size = size or (_FEW if total <= _LARGE else _MANY)
        blocks = sum(-(-parameter.numel() // self.size) for parameter, _, _ in self._held)
        count = len(self._held)
        whole = partial(torch.zeros, dtype=torch.int64, device=bad.device)
        single = partial(torch.zeros, dtype=torch.float32, device=bad.device)
        # A recording keeps their addresses; what they say is written when it is done.
        self._places = whole(count, 2)
        self._settings = single(count, 4)
        self._betas = single(count, 2)
        self._counts, self._powers = single(count, 1), torch.zeros_like(self._betas)
        self._rows = whole(blocks, 6)
        self._said: list[tuple[Tensor, Tensor]] = []

    def launch(self) -> bool:
        """Record the update of what has gradients; says no where it cannot, and has done nothing then."""
        if not self.gather():
            return False
        self.run()
        return True

    def gather(self) -> bool:
        """Find what has gradients, and where everything lies; says no where the kernels do not fit it."""
        learning = [held for held in self._held if held[0].grad is not None]
        if not learning or not all(fits_kernels(*held, self._bad.device) for held in learning):
            return False
        # On the host, whatever the default is: a copy to the device cannot be recorded.
        with torch.device("cpu"):
            self._say(learning)
        return True

    def _say(self, learning: list[_Held]) -> None:
        places = [(state["step"].data_ptr(), group["lr"].data_ptr()) for _, state, group in learning]
        numbers = [(*group["betas"], group["eps"], group["weight_decay"]) for _, _, group in learning]
        settings = torch.tensor(numbers, dtype=torch.float32)
        rows = torch.cat([self._blocks(which, *held[:2]) for which, held in enumerate(learning)])
        self._said = [
            (self._places[: len(learning)], torch.tensor(places)),
            (self._settings[: len(learning)], settings),
            (self._betas[: len(learning)], settings[:, :2]),
            (self._rows[: len(rows)], rows),
        ]

    def write_tables(self) -> None:
        """Write down what the kernels read; while something is recorded, that cannot be done."""
        for table, said in self._said:
            table.copy_(said)

    def run(self) -> None:
        """Launch the kernels over what was gathered."""
        from .adam_kernels import begin, update

        num_parameters, *_, num_blocks = (len(said) for _, said in self._said)
        begin[(num_parameters,)](self._places, self._counts, self._bad, self._num_skipped, num_warps=1)
        # Torch's own power, whose last bit is not that of Triton's.
        torch.pow(self._betas, self._counts, out=self._powers)
        tables = self._rows, self._places, self._settings, self._powers
        update[(num_blocks,)](*tables, self._bad, SIZE=self.size, num_warps=4)

    def _blocks(self, which: int, parameter: Tensor, state: dict[str, Any]) -> Tensor:
        """Give, for every block of a parameter, where its numbers lie, whose they are and how many."""
        assert parameter.grad is not None
        starts = torch.arange(0, parameter.numel(), self.size)
        tensors = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        columns = [tensor.data_ptr() + tensor.element_size() * starts for tensor in tensors]
        counts = (parameter.numel() - starts).clamp(max=self.size)
        return torch.stack([*columns, torch.full_like(starts, which), counts], dim=1)


def fast_adam(optimizer: Optimizer, bad: Tensor, num_skipped: Tensor) -> FastAdam | None:
    """Give the quick form of an optimizer's update, to be used in a recording; None where there is none."""
    if type(optimizer) not in (Adam, AdamW) or not bad.is_cuda or bad.dtype is not torch.float32:
        return None
    if not _steps_as_torch(optimizer) or not all(map(is_supported_group, optimizer.param_groups)):
        return None
    made = FastAdam(optimizer, bad, num_skipped)
    # Triton launches on the current device, whatever it is given.
    with torch.cuda.device(bad.device):
        return made if matches_torch(bad.device, made.size) else None


def _steps_as_torch(optimizer: Optimizer) -> bool:
    """Say whether nobody put a step of their own in the place of torch's; schedulers only count the calls.

    >>> optimizer = Adam([torch.nn.Parameter(torch.zeros(1))])
    >>> schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    >>> _steps_as_torch(optimizer), setattr(optimizer, "step", print), _steps_as_torch(optimizer)
    (True, None, False)
    """
    own = vars(optimizer).get("step")
    return own is None or getattr(own, "__wrapped__", None) is type(optimizer).step


def is_supported_group(group: dict[str, Any]) -> bool:
    """Say whether torch's fused kernel is asked for, in the form that is known here."""
    numbers = (*group["betas"], group["eps"], group["weight_decay"])
    is_known = group.get("fused") and not group["amsgrad"] and not group["maximize"]
    decays = group["weight_decay"] != 0 and not group.get("decoupled_weight_decay")
    if not is_known or decays or not all(isinstance(number, float | int) for number in numbers):
        return False
    # From a half up, what is missing to one is exact, so that it does not matter how it is multiplied.
    return bool(min(group["betas"]) >= 0.5)


def fits_kernels(
    parameter: Tensor, state: dict[str, Any], group: dict[str, Any], device: torch.device
) -> bool:
    """Say whether a parameter, its gradient and its state lie in memory alike, as float32 on a device."""
    if not all(_is_single(number, device) for number in (state.get("step"), group["lr"])):
        return False
    alike: list[Any] = [parameter, parameter.grad, state.get("exp_avg"), state.get("exp_avg_sq")]
    if not _is_dense(parameter) or not all(_is_single(tensor, device) for tensor in alike):
        return False
    return all(_steps(tensor) == _steps(parameter) and tensor.data_ptr() % _ALIGNED == 0 for tensor in alike)


def _is_single(tensor: Any, device: torch.device) -> bool:
    """Say whether this is a plain float32 tensor on a device; others may keep their numbers elsewhere."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype is torch.float32
        and tensor.device == device
    )


def _steps(tensor: Any) -> list[int]:
    """Give the strides that matter.

    >>> _steps(torch.zeros(8, 4, 1, 1).to(memory_format=torch.channels_last)), _steps(torch.zeros(8, 4, 1, 1))
    ([4, 1], [4, 1])
    """
    return [stride for stride, length in zip(tensor.stride(), tensor.shape) if length > 1]


def _is_dense(tensor: Tensor) -> bool:
    """Say whether a tensor fills a stretch of memory without gaps.

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
    """Compare with torch's kernel on numbers of many sizes; other versions of torch may round elsewhere.

    It also loads the kernels, which cannot be done while something is recorded.
    """
    try:
        ours, theirs = (_trained(device, size, quick=quick) for quick in (True, False))
    except Exception as error:
        log.debug("Adam runs as torch has it: %s: %s", type(error).__name__, error)
        return False
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(ours, theirs))


def _trained(device: torch.device, size: int, *, quick: bool) -> list[Tensor]:
    """Give parameters and state after three updates on fixed numbers."""
    source = torch.Generator(device).manual_seed(0)
    single = partial(torch.zeros, dtype=torch.float32, device=device)

    def draw(count: int) -> Tensor:
        spread = single(count).uniform_(-95, 5, generator=source).exp_()
        return torch.empty_like(spread).normal_(generator=source) * spread

    # Parameters that were updated that often already, one with the decay of weights.
    counts = {64 * size: 3, size // 2 + 3: 10, size: 700, 5: 20_000}
    parameters = [torch.nn.Parameter(draw(count)) for count in counts]
    rate = single(()).fill_(1e-3)
    groups = [{"params": [p], "weight_decay": 0.1 * (p.numel() == size)} for p in parameters]
    optimizer = AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True, capturable=True)
    bad, skipped = single(()), single(()).double()
    for turn in range(4):
        for parameter, count in zip(parameters, counts):
            parameter.grad = draw(count)
        # The last one is skipped.
        bad.fill_(turn == 3)
        if turn == 1:
            for parameter, before in zip(parameters, counts.values()):
                optimizer.state[parameter]["step"].fill_(before)
        if quick and turn > 0:
            made = FastAdam(optimizer, bad, skipped, size=size)
            made.gather()
            made.write_tables()
            made.run()
        else:
            # The first update makes the state.
            optimizer.found_inf, optimizer.grad_scale = bad, None  # type: ignore[attr-defined]
            optimizer.step()
    states = [value for p in parameters for value in optimizer.state[p].values()]
    return [*(p.detach() for p in parameters), *states]
