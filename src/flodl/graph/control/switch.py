"""Switches: a selector chooses one branch for the batch, or one for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from flodl.core import RouteError, StateError
from flodl.core.formats import a_type

from ..plan.error_path import details_of_part, prepend_path
from ..plan.shapes import differ
from ..plan.signature import Accepts, accepts
from .control import (
    Control,
    Target,
    batch_size,
    carried_tag,
    combine,
    on_meta,
    one_or_per_sample,
    per_sample,
)


class Switch(Control):
    """Run the branch that the selector chooses; references go to the selector.

    One index sends the whole batch through one branch; one index per sample sends each group of
    samples through its branch and restores the order. With `masked`, every branch runs on the whole
    batch and the results are selected on the device: no host sync, so it can be captured.
    """

    kind = "switch"

    def __init__(self, selector: Target, branches: Sequence[Target], *, masked: bool = False) -> None:
        super().__init__()
        self.selector = selector
        self.masked = masked
        self.num_branches = len(branches)
        self._carried = [*map(carried_tag, branches)]
        for position, branch in enumerate(branches):
            setattr(self, f"branch_{position}", branch)
        known = getattr(selector, "num_choices", self.num_branches)
        if known != self.num_branches:
            raise RouteError(
                f"the selector chooses among {known} for {self.num_branches} branches. "
                f"Give the selector {self.num_branches} choices."
            )
        fixed = getattr(selector, "index", None)
        if isinstance(fixed, int):
            self._check_range(fixed)

    def part_names(self) -> tuple[str, ...]:
        return ("selector", *(f"branch_{position}" for position in range(self.num_branches)))

    def accepted_refs(self) -> Accepts:
        return accepts(self.selector)

    def describe(self) -> str:
        return f"{self.num_branches} branches" + (", masked" if self.masked else "")

    def parts_read_again(self) -> dict[str, str]:
        runs_all = self.masked or getattr(self.selector, "gives_weights", False)
        names = self.part_names() if runs_all else self.part_names()[:2]
        return {name: repr(following) for name, following in pairwise(names)}

    def forward(self, stream: Any, /, **refs: Any) -> Any:
        before = self.versions(stream)
        try:
            choice = self.selector(stream, **refs)
        except Exception as error:
            prepend_path(error, "selector", details_of_part(error, self.selector, stream))
            raise
        if before is not None:
            before.check("selector", "the branches")
        if isinstance(choice, int):
            number = self._check_range(int(choice))
            return self._run_all_on_meta(stream, number) if on_meta(stream) else self._run(number, stream)
        if not isinstance(choice, Tensor):
            raise RouteError(
                f"the selector returned {a_type(choice)}. Return an index: an integer, or an "
                "integer tensor with one value or one value per sample.",
                path="selector",
            )
        if getattr(self.selector, "gives_weights", False):
            return combine(choice, self._run_all(stream, choice.shape[0] if choice.dim() > 1 else None))
        index = self._shaped(choice, stream)
        if index.dim() > 0 and not self.masked:
            self._check_state()
        if self.masked or (index.dim() > 0 and on_meta(stream)):
            return self._select(index, self._run_all(stream, index.shape[0] if index.dim() else None))
        if index.dim() == 0:
            if on_meta(stream):
                return self._run_all_on_meta(stream)
            return self._run(self._check_range(_to_index(index.item())), stream)
        return self._dispatch(index, stream)

    def _check_state(self) -> None:
        for position, tag in enumerate(self._carried):
            if tag is not None:
                raise _mixed_state(tag, position)

    def _run(self, position: int, stream: Any) -> Any:
        name = f"branch_{position}"
        try:
            return getattr(self, name)(stream)
        except Exception as error:
            prepend_path(error, name, details_of_part(error, getattr(self, name), stream))
            raise

    def _check_range(self, index: int) -> int:
        if not 0 <= index < self.num_branches:
            raise RouteError(
                f"the selector returned branch {index} of {self.num_branches}. "
                f"Return an index from 0 to {self.num_branches - 1}."
            )
        return index

    def _shaped(self, choice: Tensor, stream: Any) -> Tensor:
        if choice.is_complex():
            raise RouteError(
                f"the selector returned {choice.dtype}. Return an integer index.", path="selector"
            )
        shaped = one_or_per_sample(choice, stream)
        if shaped is not None:
            return shaped
        raise RouteError(
            f"the selector returned shape {tuple(choice.shape)} for a batch of {batch_size(stream)}. "
            "Return one index, or one index per sample.",
            path="selector",
        )

    def _dispatch(self, index: Tensor, stream: Any) -> Tensor:
        """Run each branch on its samples, and restore the order of the batch."""
        if not isinstance(stream, Tensor):
            raise RouteError(
                f"one index per sample needs a tensor stream, not {a_type(stream)}. "
                "Return one index for the batch."
            )
        for value in torch.unique(index).tolist():
            self._check_range(_to_index(value))
        rows = [(index == position).nonzero().squeeze(1) for position in range(self.num_branches)]
        used = [position for position, chosen in enumerate(rows) if chosen.numel()]
        if len(used) < 2:
            whole: Tensor = self._run(used[0] if used else 0, stream)
            return whole
        parts = [self._run(position, stream.index_select(0, rows[position])) for position in used]
        self._check_same_shape(parts, used)
        for position, part in zip(used, parts):
            _check_rows(part, len(rows[position]), position)
        order = torch.cat([rows[position] for position in used])
        return torch.cat(parts).index_select(0, order.argsort())

    def _run_all_on_meta(self, stream: Any, chosen: int = 0) -> Any:
        """Run every branch on the meta device, so that all shapes are checked."""
        return [self._run(position, stream) for position in range(self.num_branches)][chosen]

    def _run_all(self, stream: Any, num_samples: int | None) -> list[Tensor]:
        """Run every branch; with a choice per sample, each must return that many rows."""
        outputs: list[Tensor] = []
        for position in range(self.num_branches):
            before = self.versions(stream) if position + 1 < self.num_branches else None
            outputs.append(self._run(position, stream))
            if before is not None:
                before.check(f"branch_{position}", "the next branch")
        self._check_same_shape(outputs, range(self.num_branches))
        for position, output in enumerate(outputs):
            if num_samples is not None:
                _check_rows(output, num_samples, position)
            elif differ(output.shape, outputs[0].shape):
                raise _wrong_shape(output, outputs[0], position)
        return outputs

    def _select(self, index: Tensor, outputs: list[Tensor]) -> Tensor:
        """Select on the device; an index out of range selects NaN, or the minimum of an integer type.

        Such a value is visibly wrong, and checking the index would need a host sync.
        """
        result = torch.full_like(outputs[0], _invalid_value(outputs[0].dtype))
        for position, output in enumerate(outputs):
            result = torch.where(per_sample(index == position, output), output, result)
        return result

    def _check_same_shape(self, outputs: Sequence[Any], positions: Sequence[int]) -> None:
        first = outputs[0]
        for position, output in zip(positions, outputs):
            if not isinstance(output, Tensor):
                raise RouteError(
                    f"the branch returned {a_type(output)}. Mixed branches must return tensors.",
                    path=f"branch_{position}",
                )
            if differ(output.shape[1:], first.shape[1:]) or output.dtype != first.dtype:
                raise _wrong_shape(output, first, position)


def _mixed_state(tag: str, position: int) -> StateError:
    return StateError(
        f"the branch carries {tag!r} from call to call. With one index for each sample, it gets different "
        "samples in every call, and would continue the state of other samples. Use masked=True, which runs "
        "every branch on the whole batch, or return one index for the batch.",
        path=f"branch_{position}",
    )


def _wrong_shape(output: Tensor, first: Tensor, position: int) -> RouteError:
    has_shape = output.dtype != first.dtype and not differ(output.shape[1:], first.shape[1:])
    wanted = "dtype" if has_shape else "shape"
    return RouteError(
        f"the branch returned {tuple(output.shape)} {output.dtype}, another branch {tuple(first.shape)} "
        f"{first.dtype}. Mixed branches must return one {wanted}.",
        path=f"branch_{position}",
    )


def _check_rows(output: Tensor, num_rows: int, position: int) -> None:
    if output.dim() == 0 or differ(output.shape[:1], (num_rows,)):
        raise RouteError(
            f"the branch returned shape {tuple(output.shape)} for {num_rows} samples. "
            "Mixed branches must return one row per sample.",
            path=f"branch_{position}",
        )


def _invalid_value(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _to_index(value: float) -> int:
    if not float(value).is_integer():
        raise RouteError(
            f"the selector returned {value}. Return an integer, for example with argmax.",
            path="selector",
        )
    return int(value)
