"""Tests of sources that make their own batches."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
import torch
from torch import Tensor

from flodl.core import DataError
from flodl.data import Loader, SequentialSampler


class Maker:
    """Makes batches of indices and keys."""

    reason = "numbers are made on the host"
    sampler = None

    def __init__(self, count: int, batch_size: int, device: torch.device) -> None:
        self.num_samples, self.batch_size, self.device = count, batch_size, device
        self.description: dict[str, Any] = {"source": f"Numbers({count})"}

    def make(self, indices: Tensor, keys: Tensor) -> Any:
        assert len(indices) <= self.batch_size
        return {"index": indices * 10}, keys


class Numbers:
    """A source of ten samples."""

    num_samples = 10

    def __init__(self) -> None:
        self.makers: list[Maker] = []

    def batch_maker(self, batch_size: int, device: torch.device) -> Maker:
        self.makers.append(Maker(10, batch_size, device))
        return self.makers[-1]


def test_the_source_learns_batch_size_and_device() -> None:
    source = Numbers()
    loader = Loader(source, 4, seed=1)
    assert [(maker.batch_size, maker.device.type) for maker in source.makers] == [(4, "cpu")]
    assert (loader.mode, loader.reason) == ("streaming", "numbers are made on the host")
    assert loader.description["source"] == "Numbers(10)"
    batches = [batch[0]["index"].tolist() for batch in loader]
    assert sorted(functools.reduce(operator.iadd, batches, [])) == list(range(0, 100, 10))
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_keys_depend_on_seed_epoch_and_position_only() -> None:
    def keys(batch_size: int, **options: Any) -> Tensor:
        return torch.cat([batch[1] for batch in Loader(Numbers(), batch_size, seed=1, **options)])

    assert torch.equal(keys(4), keys(3))
    assert torch.equal(keys(4), keys(4, shuffle=False))
    loader = Loader(Numbers(), 4, seed=1)
    first = torch.cat([batch[1] for batch in loader])
    assert not torch.equal(first, torch.cat([batch[1] for batch in loader]))


@pytest.mark.slow
def test_workers_make_the_same_batches() -> None:
    loaders = [Loader(Numbers(), 4, seed=1, num_workers=workers) for workers in (0, 2)]
    one, two = ([(inputs["index"], keys) for inputs, keys in loader] for loader in loaders)
    loaders[1].close()
    for mine, theirs in zip(one, two, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])


def test_a_cursor_continues_with_the_same_keys() -> None:
    loader, again = Loader(Numbers(), 4, seed=1), Loader(Numbers(), 4)
    batches = iter(loader)
    next(batches)
    again.load_state_dict(loader.state_dict())
    for mine, theirs in zip(batches, again, strict=True):
        assert torch.equal(mine[0]["index"], theirs[0]["index"])
        assert torch.equal(mine[1], theirs[1])


def test_the_maker_may_bring_a_sampler_that_shuffling_uses() -> None:
    class Ordered(Numbers):
        def batch_maker(self, batch_size: int, device: torch.device) -> Maker:
            maker = super().batch_maker(batch_size, device)
            maker.sampler = SequentialSampler()  # type: ignore[assignment]
            return maker

    assert next(iter(Loader(Ordered(), 4)))[0]["index"].tolist() == [0, 10, 20, 30]
    given = Loader(Ordered(), 2, sampler=[5, 3])
    assert next(iter(given))[0]["index"].tolist() == [50, 30]


def test_arguments_that_would_be_ignored_are_errors() -> None:
    with pytest.raises(DataError, match="a Numbers, which makes its own batches"):
        Loader(Numbers(), 4, collate=list)
    with pytest.raises(DataError, match="mode='resident' cannot be used here: numbers are made"):
        Loader(Numbers(), 4, mode="resident")
    with pytest.raises(DataError, match="batch_size is None"):
        Loader(Numbers(), None)
