"""What a trainer was created with does not change behind its back."""

import pytest
import torch
from torch import nn

from flodl.core import StepError, TrainError


def test_a_new_optimizer_in_mid_run_is_refused_with_what_to_do_instead(make, data):
    def on_epoch_end(trainer):
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)

    trainer = make(hooks=[on_epoch_end])
    with pytest.raises(TrainError) as caught:
        trainer.fit(data, epochs=2, batch_size=8)
    assert str(caught.value) == (
        "trainer.optimizer was assigned, but a trainer keeps what it was created with: the new value would "
        "be ignored. Change its settings in trainer.optimizer.param_groups, its rate with "
        "trainer.scale_lr(…), or create a new Trainer."
    )


@pytest.mark.parametrize(
    "name", ["model", "train_step", "average", "device", "step_fn", "hooks", "schedule", "clip_norm", "keep"]
)
def test_no_part_of_a_trainer_can_be_replaced(make, name):
    with pytest.raises(TrainError, match=f"trainer.{name} was assigned, but a trainer keeps what it was"):
        setattr(make(), name, None)


def replace_weight(trainer):
    trainer.model[0].weight = nn.Parameter(trainer.model[0].weight.detach().clone())


def replace_head(trainer):
    trainer.model[3] = nn.Linear(8, 1)


def add_layer(trainer):
    trainer.model.append(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("change", "path"), [(replace_weight, "0.weight"), (replace_head, "3.weight"), (add_layer, "4.weight")]
)
@pytest.mark.parametrize("hook", ["on_start", "on_epoch_start", "on_step_end", "on_epoch_end"])
def test_a_parameter_that_nothing_would_train_is_refused_by_its_path(make, data, change, path, hook):
    def change_once(trainer):
        if not changed:
            changed.append(True)
            change(trainer)

    changed = []
    change_once.__name__ = hook
    # In the middle of an epoch, the step notices first.
    expected = rf"^at '{path}': this parameter was (added or )?replaced after the"
    with pytest.raises((TrainError, StepError), match=expected):
        make(hooks=[change_once]).fit(data, epochs=3, batch_size=8)


def test_a_parameter_that_was_replaced_between_the_trainer_and_fit_is_refused(make, data):
    trainer = make()
    replace_head(trainer)
    with pytest.raises(TrainError, match=r"^at '3\.weight': this parameter was added or replaced"):
        trainer.fit(data, epochs=1, batch_size=8)
    assert trainer.updates == 0


def test_a_new_parameter_that_is_in_the_optimizer_or_frozen_is_trained_or_left(make, data):
    def on_epoch_end(trainer, epoch):
        if epoch == 0:
            trainer.model.append(nn.Linear(1, 1))
            trainer.optimizer.add_param_group({"params": [*trainer.model[4].parameters()]})
            trainer.model.append(nn.Linear(1, 1).requires_grad_(False))
            before.append(trainer.model[4].weight.detach().clone())

    before = []
    trainer = make(hooks=[on_epoch_end])
    assert trainer.fit(data, epochs=2, batch_size=8).status == "finished"
    assert not torch.equal(trainer.model[4].weight, before[0])


def test_a_new_parameter_that_the_average_does_not_have_is_refused(make, data):
    def on_epoch_end(trainer):
        trainer.model.append(nn.Linear(1, 1))
        trainer.optimizer.add_param_group({"params": [*trainer.model[4].parameters()]})

    with pytest.raises(
        TrainError, match=r"^at '4.weight': .* the average of the weights \(ema\) was started"
    ):
        make(hooks=[on_epoch_end], ema=0.9).fit(data, epochs=2, batch_size=8)
