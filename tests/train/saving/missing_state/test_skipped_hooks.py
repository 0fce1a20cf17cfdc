"""A run that continues within an epoch says whose on_epoch_start is not called again for it."""

import pytest
import torch
from torch import nn

WORDS = "is not called again for it"


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


@pytest.fixture
def resumed(make, data, tmp_path, capsys):
    """Return a function that stops a run within its second epoch, resumes it, and returns the messages."""

    def stop_within(trainer, step):
        if step == 6:
            trainer.stop("enough")

    def stop_between(trainer, epoch):
        trainer.stop("enough")

    stop_within.__name__, stop_between.__name__ = "on_step_end", "on_epoch_end"

    def run(make_hook, *, within=True):
        for _ in range(2):
            torch.manual_seed(0)
            hooks = [make_hook(), stop_within if within else stop_between]
            trainer = make(nn.Linear(3, 1), loss_of, checkpoint_dir=tmp_path / "run", hooks=hooks)
            capsys.readouterr()
            trainer.fit(data, epochs=2, batch_size=5)
        return "".join(capsys.readouterr())

    return run


class Dataset:
    difficulty = 0


def curriculum(dataset=Dataset):
    class Curriculum:
        def on_epoch_start(self, epoch):
            dataset.difficulty = epoch

    return Curriculum()


def test_a_hook_that_sets_something_is_named(resumed):
    assert "on_epoch_start of the hook Curriculum is not called again for it" in resumed(curriculum)


def test_a_function_is_named_as_well(resumed):
    def make_hook():
        def on_epoch_start(epoch):
            Dataset.difficulty = epoch

        return on_epoch_start

    assert "within epoch 2, so on_epoch_start is not called again for it" in resumed(make_hook)


def test_a_hook_that_only_prints_is_not_reported(resumed):
    def make_hook():
        def on_epoch_start(epoch):
            print(f"epoch {epoch}")

        return on_epoch_start

    assert WORDS not in resumed(make_hook)


def test_a_program_with_on_resume_is_not_reported(resumed):
    def make_hook():
        hook = curriculum()
        hook.on_resume = lambda epoch: setattr(Dataset, "difficulty", epoch)
        return hook

    assert WORDS not in resumed(make_hook)


def test_a_run_that_continues_between_epochs_needs_no_note(resumed):
    assert WORDS not in resumed(curriculum, within=False)
