"""The ragged last batch, and what counts as one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.engine.program.ragged import padded


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def masked(model, x, y, *, mask):
    errors = (model(x) - y).square().mean(1)
    return (errors * mask).sum() / mask.sum()


def new_step(step_fn=mse, **settings) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def batch(size: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=source).double(), torch.randn(size, 2, generator=source).double()


def weights(step: TrainStep) -> torch.Tensor:
    return body_of(step).model.weight.detach().clone()


def dropped(step: TrainStep, sizes: list[int]) -> list[bool]:
    return [bool(torch.isnan(step(*batch(size)))) for size in sizes]


def test_a_dropped_batch_returns_nan_changes_nothing_and_is_reported_once() -> None:
    step = new_step(tail="drop")
    step(*batch(8))
    for _ in range(3):
        before = weights(step)
        assert torch.isnan(step(*batch(3)))
        assert torch.equal(before, weights(step))
        step(*batch(8))
        assert not torch.equal(before, weights(step))
    assert [event.kind for event in step.report().events] == ["dropped"]
    assert step.updates == 4


def test_after_one_larger_batch_the_others_are_not_ragged() -> None:
    assert dropped(new_step(tail="drop"), [6, 6, 7, 6, 6, 6, 3, 6]) == [
        *(False, False, False),
        *(True, False, False),
        *(True, False),
    ]


def test_a_second_smaller_batch_in_the_middle_of_a_window_becomes_the_usual_size() -> None:
    assert dropped(new_step(tail="drop", accumulate=2), [6, 3, 3, 3]) == [False, True, False, False]


def test_batches_are_padded_to_the_new_usual_size() -> None:
    seen: list[int] = []

    def watched(model, x, y, *, mask):
        seen.append(len(x))
        return masked(model, x, y, mask=mask)

    step = new_step(watched, tail="pad", tier="eager")
    for size in (6, 3, 6, 3, 3, 2):
        step(*batch(size))
    assert seen == [6, 6, 6, 6, 3, 3]


def test_a_run_that_stopped_after_a_tail_continues_as_if_it_had_not() -> None:
    sizes = [6, 6, 3, 3, 2, 6]
    through = dropped(new_step(tail="drop"), sizes)
    for stop in range(1, len(sizes)):
        step, resumed = new_step(tail="drop"), new_step(tail="drop")
        first = dropped(step, sizes[:stop])
        resumed.load_state_dict(json.loads(json.dumps(step.state_dict())))
        assert first + dropped(resumed, sizes[stop:]) == through


def test_a_state_without_the_memory_of_a_tail_still_loads() -> None:
    step, resumed = new_step(tail="drop"), new_step(tail="drop")
    dropped(step, [6])
    saved = step.state_dict()
    del saved["after_tail"]
    resumed.load_state_dict(saved)
    assert dropped(resumed, [3, 3]) == [True, False]


def test_means_count_the_real_rows_of_a_padded_batch() -> None:
    padding, plain = new_step(masked, tail="pad"), new_step(mse)
    for size in (8, 3, 8, 5):
        padding(*batch(size))
        plain(*batch(size))
    torch.testing.assert_close(padding.means()["loss"], plain.means()["loss"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("real", [1, 3, 5])
def test_pieces_of_a_padded_batch_are_weighted_by_their_real_rows(real: int, accumulate: int) -> None:
    def hungry(model, x, y, *, mask):
        if len(x) > 2:
            raise torch.OutOfMemoryError("a small device")
        return masked(model, x, y, mask=mask)

    cut, whole = new_step(hungry, tail="pad", accumulate=accumulate), new_step(accumulate=accumulate)
    for size in (8, real, 8, real):
        torch.testing.assert_close(cut(*batch(size)), whole(*batch(size)), rtol=1e-12, atol=0)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(cut.means()["loss"], whole.means()["loss"], rtol=1e-12, atol=0)


def test_a_padded_step_compiles_and_still_counts_real_rows(quick_compiler) -> None:
    step, plain = new_step(masked, tail="pad", tier="compiled"), new_step(tier="eager")
    for size in (8, 8, 8, 8, 8, 8, 8, 3, 8, 5):
        step(*batch(size))
        plain(*batch(size))
    assert step.tier == "compiled", step.report()
    torch.testing.assert_close(step.means()["loss"], plain.means()["loss"])


def test_arrays_are_padded_like_tensors_and_an_empty_batch_is_not() -> None:
    x = torch.arange(2).numpy()
    (rows,), mask = padded((x,), 2, 4)
    assert rows.tolist() == [0, 1, 0, 0]
    assert mask.tolist() == [True, True, False, False]
    (rows,), mask = padded((torch.zeros(0, 3),), 0, 4)
    assert rows.shape == (0, 3)
    assert mask.shape == (0,)


def test_a_batch_without_one_row_per_sample_is_not_padded() -> None:
    step = new_step(masked, tail="pad")
    x, y = torch.zeros(7, 4, 4).double(), torch.zeros(4, 2).double()
    expected = "tail='pad' cannot pad this batch: it has 4 samples, but it has tensors with 7 rows"
    with pytest.raises(StepError, match=expected):
        step.call((x, y), samples=4)
    with pytest.raises(StepError, match="it has 7 samples, but it has tensors with 4 rows"):
        step(x, y)
    assert step.is_between_updates
    step(*batch(4))
