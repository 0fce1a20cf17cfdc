"""Batches of any structure, also with tensors that occur twice."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep, capture
from flodl.engine.batch.samples import num_samples, split_batch
from flodl.engine.batch.signature import signature
from flodl.engine.batch.tree import refill, static_copy, tensors_of
from flodl.engine.capture.recording import record
from flodl.engine.errors import NotCapturable
from flodl.engine.internals import body_of


class Encoding(UserDict):
    """Like the output of a tokenizer: items are also attributes."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


class Named(dict):
    """A subclass of dict."""


class Own(MutableMapping):
    """A mapping that keeps its items in an inner dict."""

    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True)
class Pair:
    """A batch with fields, one of which is never set."""

    x: Any
    y: Any
    doubled: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", self.x * 2)


CONTAINERS: dict[str, Callable[..., Any]] = {
    "UserDict": Encoding,
    "dict subclass": Named,
    "own mapping": Own,
    "read-only": lambda **items: MappingProxyType(items),
    "dataclass": Pair,
    "nested": lambda **items: [Encoding(inner=Own(**items))],
    "arrays": lambda **items: Encoding({name: value.numpy() for name, value in items.items()}),
}


def part(batch: Any, name: str) -> torch.Tensor:
    """Find `x` or `y` in any of these."""
    if isinstance(batch, list):
        batch = batch[0]["inner"]
    return torch.as_tensor(batch[name] if isinstance(batch, Mapping) else getattr(batch, name))


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_samples_in_any_container_are_counted_split_and_copied(make) -> None:
    x, y = torch.arange(10.0).reshape(5, 2), torch.arange(5.0)
    batch = make(x=x, y=y)
    assert num_samples((batch,)) == 5
    assert [part(piece[0], "x").tolist() for piece in split_batch((batch,), 2)] == [
        x[:3].tolist(),
        x[3:].tolist(),
    ]
    copied = static_copy((batch,))[0]
    again, smaller = make(x=x.clone(), y=y.clone()), make(x=x[:4], y=y[:4])
    assert signature((again,)) == signature((batch,)) != signature((smaller,))
    part(batch, "x").add_(1)
    assert part(copied, "x")[0, 0] == 0
    assert part(batch, "x")[0, 0] == 1
    assert len(part(batch, "x")) == 5


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_any_container_is_weighted_by_its_samples_in_accumulation_means_and_pieces(make) -> None:
    def mse(model, batch):
        return nn.functional.mse_loss(model(part(batch, "x")), part(batch, "y"))

    def hungry(model, batch):
        if len(part(batch, "x")) > 3:
            raise torch.OutOfMemoryError("a small device")
        return mse(model, batch)

    def train(step_fn, wrap, sizes, **settings) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)
        x, y = torch.randn(8, 4).double(), torch.randn(8, 2).double()
        for rows in zip(x.split(sizes), y.split(sizes)):
            step(wrap(x=rows[0], y=rows[1]))
        return model.weight.detach(), step.means()["loss"]

    whole = train(mse, dict, [8])
    torch.testing.assert_close(train(mse, make, [6, 2], accumulate=2), whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(train(hungry, make, [8]), whole, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_a_compiled_step_fits_the_next_batch_of_such_a_container(quick_compiler) -> None:
    model = nn.Linear(4, 2)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, batch: nn.functional.mse_loss(m(batch.x), batch.y),
        tier="compiled",
    )
    for _ in range(10):
        step(Pair(torch.randn(6, 4), torch.randn(6, 2)))
    assert step.tier == "compiled", step.report()
    assert [event.kind for event in step.report().events] == ["compiled"]


def test_a_recording_refuses_a_numpy_array() -> None:
    with pytest.raises(NotCapturable, match="holds a NumPy array"):
        record(lambda batch: batch, ({"x": np.zeros(3)},))


def test_only_functions_can_be_captured() -> None:
    with pytest.raises(StepError, match=r"capture got None\. Pass a function or a module"):
        capture(None)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_tensors_of_different_lengths_are_reported_once_unless_samples_is_given(accumulate: int) -> None:
    def train(*, samples: int | None, **settings) -> list[str]:
        model = nn.Linear(4, 2)
        step = TrainStep(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            lambda m, x, y: m(x).mean() + y.mean(),
            **settings,
        )
        for length in (9, 8, 6):
            step.call((torch.ones(6, 4), torch.ones(length)), samples=samples)
        return [f"{event.kind}: {event.reason}" for event in step.report().events]

    assert train(samples=None, accumulate=accumulate) == [
        "samples: the first tensor of a batch has 6 rows and others have 9; "
        "it counts as 6 samples. If this is wrong, put a tensor with one row for each sample first"
    ]
    assert train(samples=6, accumulate=accumulate) == []
    assert train(samples=3, accumulate=accumulate) == []


def by_time(model, x, y):
    """A loss over sequences whose first dimension is time."""
    return nn.functional.mse_loss(model(x).sum(0), y)


def sequences(*lengths: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(2)
    return [
        (torch.randn(length, 5, 4, generator=source).double(), torch.randn(5, 2, generator=source).double())
        for length in lengths
    ]


def step_by_time(model: nn.Module | None = None, step_fn=by_time, **settings) -> TrainStep:
    model = model or linear()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2).double()


def test_a_batch_is_weighted_by_the_given_number_of_samples() -> None:
    data = sequences(3, 30, 4, 9)
    trained, model = linear(), linear()
    step = step_by_time(trained, accumulate=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number, (x, y) in enumerate(data):
        loss = by_time(model, x, y)
        (loss / 2).backward()
        losses.append(loss.detach())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        step.call((x, y), samples=5)
    torch.testing.assert_close(list(trained.parameters()), list(model.parameters()))
    torch.testing.assert_close(step.means()["loss"], torch.stack(losses).mean())


def test_the_given_number_of_samples_decides_what_a_ragged_batch_is() -> None:
    step = step_by_time(tail="drop")
    assert not any(step.call(batch, samples=5).isnan() for batch in sequences(9, 3, 9, 2))


def samples_counted(step: TrainStep) -> float:
    """Return how many samples the mean of the loss is over."""
    ((names, (weight, _)),) = step.state_dict()["means"]
    assert names == ["loss"]
    return weight


def test_a_step_is_compiled_for_the_given_number_of_samples(quick_compiler) -> None:
    step = step_by_time(tier="compiled")
    for number, batch in enumerate(sequences(*[6] * 10)):
        step.call(batch, samples=5)
        assert samples_counted(step) == 5 * (number + 1)
    assert step.tier == "compiled", step.report()
    step(*batch)
    assert samples_counted(step) == 56


@pytest.mark.parametrize("samples", [-1, 2.0, True, "4"])
def test_an_invalid_number_of_samples_is_refused(samples) -> None:
    with pytest.raises(StepError, match="Pass the number of samples in the batch, or None"):
        step_by_time().call(sequences(3)[0], samples=samples)


@pytest.mark.parametrize("samples", [None, 5])
def test_a_batch_without_one_row_per_sample_is_not_split_when_memory_runs_out(samples) -> None:
    limit = 100

    def hungry(model, x, y):
        if x.numel() > limit:
            raise torch.OutOfMemoryError("a small device")
        return by_time(model, x, y)

    step = step_by_time(step_fn=hungry)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        step.call(sequences(7)[0], samples=samples)
    expected = (
        "it has 5 samples, but it has tensors with 7" if samples else "7 samples, but it has tensors with 5"
    )
    assert expected in caught.value.__notes__[0]
    # Earlier batches were split.
    body_of(step).pieces = 2
    limit = 1000
    whole = step_by_time()
    assert step.call(sequences(7)[0], samples=samples) == whole.call(sequences(7)[0], samples=samples)


def test_a_batch_without_rows_is_not_split() -> None:
    def hungry(model, words):
        raise torch.OutOfMemoryError("a small device")

    step = step_by_time(step_fn=hungry)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        step.call((["a", "b"],), samples=2)
    assert "it has 2 samples, but no tensor with rows" in caught.value.__notes__[0]


def test_a_tensor_that_occurs_twice_has_another_signature_than_two_equal_ones() -> None:
    x, y = torch.zeros(2), torch.zeros(2)
    assert signature((x, x)) != signature((x, y))
    assert signature((x, x)) == signature((y, y))
    assert signature(({"a": x, "b": x},)) != signature(({"a": x, "b": y},))


def test_signatures_differ_in_everything_that_a_recording_depends_on() -> None:
    x = torch.zeros(4, 4)
    others = [x.t()[:, :], torch.zeros(4, 5), x.double(), torch.zeros(4, 8)[:, ::2]]
    seen = {signature((x,)), *(signature((other,)) for other in others[1:])}
    assert len(seen) == 4
    assert signature((x, 3)) != signature((x, 4))
    assert signature(({"a": x},)) != signature(({"b": x},))
    assert signature(([x], {"k": [1, 2]})) == signature(([x], {"k": [1, 2]}))


def test_a_static_copy_keeps_shared_tensors_and_can_be_refilled() -> None:
    x = torch.arange(3.0)
    copied = static_copy((x, {"again": x}, "word"))
    assert copied[0] is copied[1]["again"]
    assert copied[0] is not x
    refill(tensors_of(copied), tensors_of((x + 1, {"again": x + 1}, "word")))
    assert copied[0].tolist() == [1.0, 2.0, 3.0]


def test_a_batch_without_tensors_has_nothing_to_refill() -> None:
    copied = static_copy(())
    refill(tensors_of(copied), tensors_of(()))
    assert copied == ()


def test_the_number_of_samples_is_found_in_any_structure() -> None:
    assert num_samples(({"scalar": torch.zeros(()), "ids": torch.zeros(7, 3)},)) == 7
    assert num_samples(("word", 3)) == 1


def test_pieces_share_what_has_no_rows() -> None:
    parts = split_batch(({"x": torch.arange(4), "scale": torch.tensor(9.0), "name": "a"},), 2)
    assert [part[0]["x"].tolist() for part in parts] == [[0, 1], [2, 3]]
    assert all(part[0]["scale"] == 9 and part[0]["name"] == "a" for part in parts)


def test_a_model_learns_from_a_batch_that_is_its_own_target_and_from_a_dict() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: (m(x) - y).square().mean()
    )
    x = torch.randn(8, 4)
    assert step(x, x) > step(x, x)
    by_name = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, batch: (m(batch["x"]) - batch["y"]).square().mean(),
    )
    assert by_name({"x": x, "y": x}) > by_name({"x": x, "y": x})


def test_a_static_copy_has_the_layout_of_the_batch():
    wide = torch.arange(12.0).reshape(3, 4)
    batch = (wide[:, :2], wide.t(), wide[:1].expand(3, 4), wide[::2], torch.tensor(1.0))
    copied = static_copy(batch)
    for mine, theirs in zip(copied, batch):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
    strides = [leaf.stride() for leaf in copied]
    assert strides == [(4, 1), (1, 4), (4, 1), (8, 1), ()]
