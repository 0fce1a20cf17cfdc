"""Batches of any structure, with tensors that are there twice."""

from __future__ import annotations

import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.batch import num_samples, pieces_of, refill, signature, static_copy, tensors_of


def test_a_tensor_that_is_there_twice_has_another_signature_than_two_equal_ones() -> None:
    x, y = torch.zeros(2), torch.zeros(2)
    assert signature((x, x)) != signature((x, y))
    assert signature((x, x)) == signature((y, y))
    assert signature(({"a": x, "b": x},)) != signature(({"a": x, "b": y},))


def test_what_a_recording_is_made_for_is_told_apart() -> None:
    x = torch.zeros(4, 4)
    others = [x.t()[:, :], torch.zeros(4, 5), x.double(), torch.zeros(4, 8)[:, ::2]]
    seen = {signature((x,)), *(signature((other,)) for other in others[1:])}
    assert len(seen) == 4
    assert signature((x, 3)) != signature((x, 4))
    assert signature(({"a": x},)) != signature(({"b": x},))
    assert signature(([x], {"k": [1, 2]})) == signature(([x], {"k": [1, 2]}))


def test_a_copy_keeps_what_is_shared_and_takes_new_numbers() -> None:
    x = torch.arange(3.0)
    copied = static_copy((x, {"again": x}, "word"))
    assert copied[0] is copied[1]["again"]
    assert copied[0] is not x
    refill(tensors_of(copied), tensors_of((x + 1, {"again": x + 1}, "word")))
    assert copied[0].tolist() == [1.0, 2.0, 3.0]


def test_the_number_of_samples_is_found_in_any_structure() -> None:
    assert num_samples(({"scalar": torch.zeros(()), "ids": torch.zeros(7, 3)},)) == 7
    assert num_samples(("word", 3)) == 1


def test_pieces_share_what_has_no_samples() -> None:
    parts = pieces_of(({"x": torch.arange(4), "table": torch.zeros(9)},), 2)
    assert [part[0]["x"].tolist() for part in parts] == [[0, 1], [2, 3]]
    assert all(part[0]["table"].shape == (9,) for part in parts)


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
