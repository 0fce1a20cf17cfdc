"""An option of a group that is nearly one of the optimizer is an error; a custom name is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl import Trainer, TrainStep
from flodl.core import StepError, TrainError
from flodl.optim.misspelled_options import misspelled_option


def optimizer_with(make=torch.optim.AdamW, **options):
    return make([{"params": [nn.Parameter(torch.zeros(2))], **options}], lr=0.1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning_rate", "lr"),
        ("LR", "lr"),
        ("wd", "weight_decay"),
        ("decay", "weight_decay"),
        ("weightdecay", "weight_decay"),
        ("weight_decya", "weight_decay"),
        ("beta", "betas"),
        ("epsilon", "eps"),
    ],
)
def test_a_misspelled_option_is_named_with_what_was_meant(name: str, meant: str) -> None:
    text = misspelled_option(optimizer_with(**{name: 0.5}))
    assert f"has the option {name!r}, which AdamW does not have" in text
    assert f"Did you mean {meant!r}?" in text


@pytest.mark.parametrize(
    "name", ["name", "layer_id", "lr_scale", "lr_mult", "tag", "initial_lr", "use_muon", "momentum", "group"]
)
def test_a_custom_name_is_fine(name: str) -> None:
    assert misspelled_option(optimizer_with(**{name: 0.5})) == ""


def test_what_schedulers_of_torch_store_is_fine() -> None:
    optimizer = optimizer_with(torch.optim.SGD, momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.01, max_lr=0.1)
    assert misspelled_option(optimizer) == ""


def test_a_step_and_a_trainer_reject_a_misspelled_option() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def build(_):
        own = {"params": model[0].parameters(), "learning_rate": 1e-5}
        return torch.optim.AdamW([{"params": model[1].parameters()}, own], lr=1e-2)

    with pytest.raises(StepError, match="Did you mean 'lr'"):
        TrainStep(model, build(()), lambda model, x: model(x).mean())
    with pytest.raises(TrainError, match="group 1 of the optimizer has the option 'learning_rate'"):
        Trainer(model, lambda model, x: model(x).mean(), optimizer=build, device="cpu", monitor=False)
