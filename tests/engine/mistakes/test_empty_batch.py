"""A batch without samples is named where its loss is not finite, or where torch cannot compute it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl import Trainer
from flodl.core import NotFiniteError
from flodl.engine import TrainStep, find_non_finite
from flodl.engine.errors import StepFunctionError

X, Y = torch.ones(8, 4), torch.zeros(8, 2)
NO_X, NO_Y = X[:0], Y[:0]
TOLD = "the batch has no samples: x is float32 [0, 4] and y is float32 [0, 2]"
ADVICE = "A step needs at least one sample: leave out empty batches, and check the sampler"


class Batches:
    """Batches as they are."""

    def __init__(self, *batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def mse(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def total(model, x, y):
    return (model(x) - y).square().sum() / max(len(x), 1)


def new_step(step_fn=mse, *layers: nn.Module, **settings) -> TrainStep:
    model = nn.Sequential(nn.Linear(4, 2), *layers)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager", **settings)


def new_trainer() -> Trainer:
    return Trainer(nn.Linear(4, 2), mse, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))


def test_a_step_names_the_empty_arguments_once(capsys) -> None:
    step = new_step()
    assert step(X, Y).isfinite()
    for _ in range(2):
        assert step(NO_X, NO_Y).isnan()
    told = capsys.readouterr().err
    assert told.count(f"{TOLD}, and its loss is not finite, so the update is skipped. {ADVICE}") == 1


def test_an_empty_batch_with_a_finite_loss_is_no_mistake(capsys) -> None:
    assert new_step(total)(NO_X, NO_Y).isfinite()
    assert capsys.readouterr().err == ""


def test_an_empty_batch_on_one_rank_is_no_mistake(capsys) -> None:
    step = new_step(reduce_gradients=lambda tensors, samples: None)
    step(X, Y)
    assert step(NO_X, NO_Y).isnan()
    assert "no samples" not in capsys.readouterr().err


def test_parts_of_a_dict_are_named_too(capsys) -> None:
    step = new_step(lambda model, batch: model(batch["x"]).mean())
    step({"x": NO_X})
    assert "the batch has no samples: batch['x'] is float32 [0, 4]" in capsys.readouterr().err


def test_the_search_for_the_cause_names_the_batch() -> None:
    found = find_non_finite(new_step(), (NO_X, NO_Y))
    assert found is not None
    assert found.what == f"the loss is not finite because {TOLD}"


def test_an_error_of_torch_about_an_empty_batch_says_that_it_is_empty() -> None:
    step = new_step(lambda model, x, y: (model(x) - y).square().amax())
    with pytest.raises(StepFunctionError) as caught:
        step(NO_X, NO_Y)
    assert f"{TOLD[0].upper()}{TOLD[1:]}. {ADVICE}" in str(caught.value)


@pytest.mark.parametrize("at", [0, 1])
def test_a_trainer_names_the_empty_batch(at: int) -> None:
    batches = [(X, Y), (X, Y)]
    batches[at] = (NO_X, NO_Y)
    with pytest.raises(NotFiniteError) as caught:
        new_trainer().fit(Batches(*batches), epochs=1)
    assert TOLD in str(caught.value)
    assert ADVICE in str(caught.value)
    assert "learning rate" not in str(caught.value)


def test_a_dataloader_that_returns_empty_batches_is_explained() -> None:
    data = torch.utils.data.DataLoader([*zip(X, Y)], batch_size=4, collate_fn=lambda samples: (NO_X, NO_Y))
    with pytest.raises(NotFiniteError) as caught:
        new_trainer().fit(data, epochs=1)
    assert TOLD in str(caught.value)


def test_an_empty_batch_of_an_evaluation_is_named(capsys) -> None:
    new_trainer().fit(
        Batches((X, Y)),
        epochs=1,
        eval_data=torch.utils.data.DataLoader([(X, Y), (NO_X, NO_Y)], batch_size=None),
    )
    assert f"evaluation: {TOLD}, so eval_loss is not a number" in capsys.readouterr().err
