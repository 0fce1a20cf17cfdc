"""A loop over an epoch that is left after its last batch ends the epoch."""

import pytest


def trained(trainer, data, epochs, **settings):
    for _ in range(epochs):
        for batch in trainer.epoch(data, batch_size=8, **settings):
            trainer.step(batch)
    return trainer.history


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}])
@pytest.mark.parametrize("limit", [None, 2])
def test_zip_over_the_epochs_of_two_trainers_trains_both_alike(make, data, settings, limit):
    ended = []

    def on_epoch_end(epoch):
        ended.append(epoch)

    one, other = make(**settings), make(hooks=[on_epoch_end], **settings)
    for _ in range(3):
        loops = (each.epoch(data, batch_size=8, eval_data=data, limit=limit) for each in (one, other))
        for batch, other_batch in zip(*loops):
            one.step(batch)
            other.step(other_batch)
    assert ended == [0, 1, 2]
    assert one.history == other.history == trained(make(**settings), data, 3, eval_data=data, limit=limit)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_loop_that_is_left_early_continues_unless_the_epoch_is_done(make, data, batches):
    trainer = make()
    for number, batch in enumerate(trainer.epoch(data, batch_size=8), 1):
        trainer.step(batch)
        if number == batches:
            break
    assert trainer.epochs == (batches == 3)
    while trainer.epochs < 2:
        trained(trainer, data, 1)
    assert trainer.history == trained(make(), data, 2)


def test_a_last_batch_that_is_not_trained_on_is_the_first_of_the_next_loop(make, data):
    trainer = make()
    for number, batch in enumerate(trainer.epoch(data, batch_size=8), 1):
        if number == 3:
            break
        trainer.step(batch)
    assert trainer.epochs == 0
    assert trained(trainer, data, 1) == trained(make(), data, 1)


def test_a_run_that_zip_left_resumes_with_the_next_epoch(make, data, tmp_path):
    for epochs in (1, 3):
        trainer = make(checkpoint_dir=tmp_path)
        trainer.resume(data, 8)
        with trainer.running(
            epochs
        ):  # else the last save may not be written when the next trainer looks for it
            while trainer.epochs < epochs:
                for _, batch in zip(range(3), trainer.epoch(data, batch_size=8)):
                    trainer.step(batch)
    assert trainer.history == trained(make(), data, 3)


def test_an_epoch_whose_last_step_failed_is_not_ended(make, data):
    def on_step_end(step):
        if step == 3:
            raise ValueError("mine")

    trainer = make(hooks=[on_step_end])
    with pytest.raises(ValueError, match="mine"):
        trained(trainer, data, 1)
    assert trainer.epochs == 0


def test_stopping_in_the_last_batch_does_not_end_the_epoch(make, data):
    def on_step_end(trainer, step):
        if step == 3:
            trainer.stop("enough")

    trainer = make(hooks=[on_step_end])
    for number, batch in enumerate(trainer.epoch(data, batch_size=8), 1):
        trainer.step(batch)
        if number == 3:
            break
    assert trainer.epochs == 0
