"""Three levels of control with the same losses; afterwards everything is restored."""

import gc
import signal
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info

from flodl import FlowBuilder, Loader, TrainStep
from flodl.checkpoint import best
from flodl.core import TrainError
from flodl.optim import CosineScheduler, StepDecay
from flodl.train import EarlyStopping


class Losses:
    def __init__(self):
        self.seen = []

    def on_step_end(self, loss):
        self.seen.append(loss.item())


def dict_loss(model, batch):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def tensor_loss(model, x):
    return model(x).square().mean()


def sources(data):
    return {
        "tuple": (data, None),
        "list": (list(zip(*data)), None),
        "dict": ({"x": data[0], "y": data[1]}, dict_loss),
        "tensor": (data[0], tensor_loss),
    }


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "tensor"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_three_levels_produce_the_same_losses(make, data, kind, accumulate):
    source, step_fn = sources(data)[kind]
    settings = {"schedule": CosineScheduler(0.1, 0.01, 30), "clip_norm": 1.0, "accumulate": accumulate}
    settings |= {} if step_fn is None else {"step_fn": step_fn}
    trainers = [make(**settings, hooks=[Losses()]) for _ in range(3)]
    torch.manual_seed(5)
    trainers[0].fit(source, epochs=3, batch_size=8)
    torch.manual_seed(5)
    for _ in range(3):
        for batch in trainers[1].epoch(source, batch_size=8):
            trainers[1].step(batch)
    torch.manual_seed(5)
    bare, loader, by_hand = trainers[2], Loader(source, 8), []
    step = TrainStep(
        bare.model,
        torch.optim.SGD(bare.model.parameters(), lr=0.1, momentum=0.9),
        bare.step_fn,
        schedule=settings["schedule"],
        clip_norm=1.0,
        accumulate=accumulate,
        tier="eager",
    )
    for _ in range(3):
        for batch in loader:
            arguments = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
            by_hand.append(step(*arguments).item())
        step.flush()
    first, second = (trainer._run.hooks.all[0].seen for trainer in trainers[:2])
    assert len(by_hand) == 9
    # A hook receives the loss of the last batch of each window.
    assert first == second == by_hand[accumulate - 1 :: accumulate]
    weights = [torch.cat([p.flatten() for p in trainer.model.parameters()]) for trainer in trainers]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    assert trainers[0].history == trainers[1].history


def test_a_loop_that_is_left_early_continues_with_the_next_batch(make, data):
    whole, parts = make(hooks=[Losses()]), make(hooks=[Losses()])
    whole.fit(data, epochs=2, batch_size=4)
    while parts.epochs < 2:
        # A new tuple each time, of the same tensors.
        for number, batch in enumerate(parts.epoch((data[0], data[1]), batch_size=4)):
            parts.step(batch)
            if number == 1:
                break
    assert parts._run.hooks.all[0].seen == whole._run.hooks.all[0].seen
    assert parts.history == whole.history


def test_fit_continues_with_more_epochs(make, data):
    once, twice = make(), make()
    once.fit(data, epochs=4, batch_size=8)
    twice.fit(data, epochs=1, batch_size=8)
    assert twice.fit(data, epochs=4, batch_size=8).history == once.history


def test_different_data_starts_at_its_beginning(make, data):
    trainer = make()
    loader = Loader(data, 5)
    trainer.fit(data, epochs=1, batch_size=8)
    trainer.fit(loader, epochs=2)
    result = trainer.fit(data, epochs=3, batch_size=8)
    assert (result.steps, len(result.history)) == (3 + 4 + 3, 3)


def test_an_iterable_without_a_length_can_be_trained_on(make, data):
    rows = list(zip(data[0].split(4), data[1].split(4)))
    result = make().fit(Loader(iter_of(rows), None), epochs=2)
    assert result.steps == 10


def iter_of(rows):
    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows)

    return Rows()


def test_a_row_has_means_over_samples_and_the_rate(make, data):
    def step_fn(model, x, y):
        return nn.functional.mse_loss(model(x), y), {"first": x[:, 0].mean()}

    (row,) = make(step_fn=step_fn, schedule=StepDecay(0.1, 1, 0.5)).fit(data, epochs=1, batch_size=8).history
    assert list(row) == ["epoch", "loss", "first", "lr"]
    assert row["epoch"] == 1
    assert row["first"] == pytest.approx(data[0][:, 0].mean().item(), rel=1e-5)
    assert row["lr"] == pytest.approx(0.1 * 0.5**3)


def test_a_model_in_evaluation_mode_is_trained_in_training_mode_and_restored(make, data):
    seen = []

    def step_fn(model, x, y):
        seen.append((model.training, model[2].training))
        return nn.functional.mse_loss(model(x), y)

    trainer = make(step_fn=step_fn)
    trainer.model.eval()
    trainer.fit(data, epochs=1, batch_size=8)
    assert set(seen) == {(True, True)}
    assert not any(module.training for module in trainer.model.modules())


def test_a_part_in_evaluation_mode_stays_in_it(make, data):
    trainer = make()
    trainer.model[2].eval()
    trainer.fit(data, epochs=1, batch_size=8, eval_data=data)
    assert [module.training for module in trainer.model] == [True, True, False, True]


def test_signals_collector_and_modes_are_restored(make, data, tmp_path):
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    inside = []
    trainer = make(checkpoint_dir=tmp_path, hooks=[on_epoch_end_noting(inside, numbers)])
    gc.disable()
    try:
        trainer.fit(data, epochs=1, batch_size=8)
        assert not gc.isenabled()
    finally:
        gc.enable()
    trainer.fit(data, epochs=2, batch_size=8)
    assert gc.isenabled()
    assert inside[0] != before
    assert [signal.getsignal(number) for number in numbers] == before


def on_epoch_end_noting(inside, numbers):
    def on_epoch_end():
        inside.append([signal.getsignal(number) for number in numbers])

    return on_epoch_end


def test_everything_is_restored_after_an_error_too(make, data, tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def on_step_end():
        raise ValueError("mine")

    trainer = make(checkpoint_dir=tmp_path, hooks=[on_step_end])
    with pytest.raises(ValueError, match="mine"):
        trainer.fit(data, epochs=1, batch_size=8)
    assert signal.getsignal(signal.SIGTERM) is before
    assert gc.isenabled()
    trainer._run._has_step_hooks = False
    assert trainer.fit(data, epochs=1, batch_size=8).status == "finished"


def test_fit_in_a_thread_leaves_signals_alone(make, data, tmp_path):
    done = []
    before = signal.getsignal(signal.SIGTERM)
    seen = []
    trainer = make(checkpoint_dir=tmp_path, hooks=[on_epoch_end_noting(seen, [signal.SIGTERM])])
    thread = threading.Thread(target=lambda: done.append(trainer.fit(data, epochs=1, batch_size=8)))
    thread.start()
    thread.join()
    assert done[0].status == "finished"
    assert seen == [[before]]


def test_a_run_inside_a_run_needs_another_trainer(make, data):
    inner = make()

    def on_epoch_end(trainer):
        inner.fit(data, epochs=1, batch_size=8)
        with pytest.raises(TrainError, match="already running"):
            trainer.fit(data, epochs=1, batch_size=8)

    assert make(hooks=[on_epoch_end]).fit(data, epochs=1, batch_size=8).status == "finished"
    assert inner.epochs == 1


def test_stop_ends_the_run_after_the_update(make, data):
    def on_step_end(trainer, batch):
        trainer.stop("enough")

    trainer = make(hooks=[on_step_end], accumulate=2)
    result = trainer.fit(data, epochs=5, batch_size=4)
    assert (result.status, result.reason, result.steps, result.history) == ("stopped", "enough", 1, [])
    assert trainer.train_step.is_between_updates


@pytest.mark.parametrize("scheduled", [False, True])
def test_scale_lr_works_with_and_without_a_schedule(make, data, scheduled):
    trainer = make(schedule=(lambda step: 0.2) if scheduled else None)
    trainer.scale_lr(0.5)
    rate = 0.1 if scheduled else 0.05
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    trainer.fit(data, epochs=1, batch_size=8)
    assert trainer.history[0]["lr"] == pytest.approx(rate)
    trainer.scale_lr(0.1, least=0.04)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.04)
    trainer.scale_lr(0.5, least=1.0)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.04)


def test_an_existing_optimizer_can_be_passed(make, data):
    model = nn.Linear(3, 1)
    result = make(model, optimizer=torch.optim.Adam(model.parameters())).fit(data, epochs=1, batch_size=8)
    assert result.steps == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs=0. Use an integer of at least 1"),
        ({"epochs": True}, "epochs=True"),
        ({"epochs": 1, "resume": "must"}, "resume='must' needs a checkpoint_dir"),
        ({"epochs": 1, "resume": "atuo"}, "is not 'auto', 'must', 'never' or a folder"),
    ],
)
def test_invalid_arguments_of_fit_raise(make, data, settings, words):
    with pytest.raises(TrainError, match=words):
        make().fit(data, batch_size=8, **settings)


def sgd():
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nan": "ignore"}, "nan='ignore'. .*'stop'"),
        ({"nan": "rollback"}, "Set a checkpoint_dir"),
        ({"when_disk_fails": "continu"}, "when_disk_fails='continu'. Did you mean 'continue'"),
        ({"save_every": 0}, "save_every=0. Use an integer of at least 1, or None"),
        ({"log_every": 1.5}, "log_every=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"ema": 1.0}, "ema=1.0. Use a decay between 0 and 1"),
        ({"device": "gpu"}, "device='gpu' is not a device"),
        ({"optimizer": 3}, "optimizer=3 does not return a torch optimizer"),
        ({"optimizer": lambda groups: None}, "does not return a torch optimizer"),
        (
            {"optimizer": [sgd(), sgd()]},
            "^optimizer is a list of 2, and .* one TrainStep for each optimizer.$",
        ),
    ],
)
def test_invalid_arguments_of_a_trainer_raise(make, settings, words):
    with pytest.raises(TrainError, match=words):
        make(**settings)


def test_a_model_that_is_not_a_module_raises(make):
    with pytest.raises(TrainError, match=r"is a FlowBuilder. Write Trainer\(builder.build\(\), step_fn"):
        make(FlowBuilder(nn.Linear(3, 1)))
    with pytest.raises(TrainError, match=r"the model is a str. Write Trainer\(model, step_fn"):
        make("model")
    with pytest.raises(TrainError, match=r"the model is the class Sequential. Create one: Sequential\(…\)"):
        make(nn.Sequential)


def test_a_loader_on_a_different_device_is_rejected(make, data):
    with pytest.raises(TrainError, match="the loader returns batches on meta, and the model is on cpu"):
        make().fit(Loader(tuple(part.to("meta") for part in data), 4, shuffle=False), epochs=1)


@pytest.mark.parametrize("wait", [True, False])
def test_a_save_within_an_accumulation_window_is_postponed_to_its_end(make, data, tmp_path, wait):
    whole, saved = make(accumulate=3), []
    whole.fit(data, epochs=2, batch_size=4)

    def on_save(step):
        saved.append(step)

    trainer = make(accumulate=3, checkpoint_dir=tmp_path, hooks=[on_save], save_every=None)
    with trainer.running(1):
        for number, batch in enumerate(trainer.epoch(data, 4), start=1):
            trainer.step(batch)
            # The second of a window of three; the fifth and last of an epoch, whose window is closed by it.
            if number in (2, 5):
                trainer.save(wait=wait, reason=f"batch {number}")
                trainer.save(wait=wait, reason=f"batch {number} again")
    assert saved == [1, 2]
    again = make(accumulate=3, checkpoint_dir=tmp_path)
    again.fit(data, epochs=2, batch_size=4)
    assert again.history == whole.history
    assert torch.equal(again.model[0].weight, whole.model[0].weight)


def test_saving_requires_a_checkpoint_dir(make):
    with pytest.raises(TrainError, match="nowhere to save to"):
        make().save()


def test_a_custom_loop_has_everything_around_it(make, data, tmp_path):
    ended = []

    def on_end(result):
        ended.append(result.steps)

    losses = []
    for until in (1, 3):
        trainer = make(checkpoint_dir=tmp_path, hooks=[on_end])
        with trainer.running(epochs=until):
            assert trainer.resume(data, batch_size=8) == (until == 3)
            while trainer.epochs < until:
                losses += [trainer.step(batch).item() for batch in trainer.epoch(data, batch_size=8)]
    whole = make(hooks=[Losses()])
    whole.fit(data, epochs=3, batch_size=8)
    assert losses == whole._run.hooks.all[0].seen
    assert ended == [3, 9]


def test_names_reserved_for_the_history_are_rejected(make, data):
    for name in ("epoch", "lr", "eval_loss"):
        trainer = make(step_fn=lambda model, x, y, name=name: (model(x).square().mean(), {name: 1.0}))
        with pytest.raises(TrainError, match="which is reserved for the history"):
            trainer.fit(data, epochs=1, batch_size=8)


def test_a_batch_size_in_addition_to_a_loader_is_rejected(make, data):
    with pytest.raises(TrainError, match="was given with a Loader whose batch_size is 8"):
        make().fit(Loader(data, 8), epochs=1, batch_size=4)
    source = torch.utils.data.DataLoader(list(zip(*data)), batch_size=8)
    assert make().fit(source, epochs=1, batch_size=8).steps == 3


def test_a_model_without_parameters_raises(make):
    with pytest.raises(TrainError, match="the ReLU has no parameters, so there is nothing to train"):
        make(nn.ReLU())


def test_the_repr_of_a_trainer_shows_its_progress(make, data):
    trainer = make()
    trainer.fit(data, epochs=1, batch_size=8)
    assert repr(trainer) == "Trainer(Sequential on cpu, 1 epoch and 3 updates done)"


def test_stop_needs_no_reason(make, data):
    def on_step_end(trainer):
        trainer.stop()

    assert make(hooks=[on_step_end]).fit(data, epochs=1, batch_size=8).reason == "stopped"


@pytest.mark.parametrize("with_folder", [False, True])
def test_an_unreferenced_trainer_is_freed_without_the_garbage_collector(make, data, tmp_path, with_folder):
    trainer = make(checkpoint_dir=tmp_path) if with_folder else make()
    trainer.fit(data, epochs=1, batch_size=8)
    freed = weakref.ref(trainer), weakref.ref(trainer._run), weakref.ref(trainer.model)
    gc.disable()
    try:
        del trainer
        assert [reference() for reference in freed] == [None] * 3
    finally:
        gc.enable()


def test_cycles_that_an_epoch_leaves_are_collected_at_its_end(make, data):
    class Cycle:
        def __init__(self):
            self.itself = self

    cycles, alive = [], []

    def on_step_end():
        cycles.append(weakref.ref(Cycle()))

    def on_epoch_start():
        alive.append(sum(cycle() is not None for cycle in cycles))

    make(hooks=[on_step_end, on_epoch_start]).fit(data, epochs=3, batch_size=8)
    assert len(cycles) == 9
    assert alive == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_iterable_with_workers_continues_where_it_was(make, data, tmp_path, num_workers):
    class Rows(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            yield from list(zip(*data))[info.id :: info.num_workers]

    def losses(folder, *stops):
        seen = []
        for stop in stops:

            def on_step_end(trainer, step, loss, stop=stop):
                seen.append(loss.item())
                if step == stop:
                    trainer.stop()

            loader = Loader(Rows(), 3, num_workers=num_workers, shuffle_buffer=4, seed=2)
            make(hooks=[on_step_end], checkpoint_dir=tmp_path / folder).fit(loader, epochs=3)
            loader.close()
        return seen

    whole = losses("whole", 0)
    assert len(whole) == 3 * {1: 7, 2: 8}[num_workers]
    assert losses("parts", 2, 11, 13, 0) == whole


def test_an_invalid_keep_policy_is_rejected(make, tmp_path):
    with pytest.raises(TrainError, match="keep=3"):
        make(checkpoint_dir=tmp_path, keep=3)


def test_a_metric_to_keep_the_best_of_must_exist(make, data, tmp_path):
    with pytest.raises(TrainError, match="which this run does not have"):
        make(checkpoint_dir=tmp_path, keep=best("val_loss")).fit(data, epochs=2, batch_size=8)


def test_a_stopped_run_yields_no_batch_and_starts_again_with_running(make, data):
    trainer = make(accumulate=2)
    whole = make(accumulate=2).fit(data, epochs=2, batch_size=4)
    seen = 0
    while trainer.epochs < 2 and not trainer.stop_reason:
        for batch in trainer.epoch(data, batch_size=4):
            trainer.step(batch)
            seen += 1
            if seen == 1:
                trainer.stop("enough")
    assert (seen, trainer.updates, trainer.history) == (2, 1, [])  # the update that was under way
    assert list(trainer.epoch(data, batch_size=4)) == []
    assert trainer.stop_reason == "enough"
    with trainer.running(epochs=2):
        while trainer.epochs < 2:
            for batch in trainer.epoch(data, batch_size=4):
                trainer.step(batch)
    assert trainer.history == whole.history


def test_early_stopping_ends_a_custom_loop(make, data):
    trainer = make(hooks=[EarlyStopping("lr", patience=2)])
    while trainer.epochs < 9 and not trainer.stop_reason:
        for batch in trainer.epoch(data, batch_size=8):
            trainer.step(batch)
    assert (trainer.epochs, trainer.updates) == (3, 9)


def test_a_loop_that_ignores_stop_reason_raises_with_advice(make, data):
    trainer = make()
    trainer.stop("enough")

    def loop():
        while trainer.epochs < 1:
            for batch in trainer.epoch(data, batch_size=8):
                trainer.step(batch)

    with pytest.raises(TrainError, match=r"stopped \(enough\), .*1000 times.*and not trainer.stop_reason:`"):
        loop()
    assert trainer.fit(data, epochs=1, batch_size=8).status == "finished"


def test_the_parts_of_a_batch_may_be_passed_separately(make, data):
    seen = []

    def on_step_end(batch):
        seen.append(type(batch))

    one, other = make(hooks=[on_step_end]), make(hooks=[on_step_end])
    assert one.step(*data).item() == other.step(data).item()
    assert seen == [tuple, tuple]
    mapping = make(step_fn=dict_loss).step({"x": data[0], "y": data[1]})
    assert mapping.item() == make().step(list(data)).item()
    assert make(step_fn=tensor_loss).step(data[0]).ndim == 0


@pytest.mark.parametrize("own", [False, True])
def test_reading_a_batch_takes_nothing_from_the_first_epoch(make, data, own):
    trainer = make()
    loader = Loader(data, 8) if own else trainer.loader(data, 8)
    next(iter(loader))
    result = trainer.fit(loader, epochs=2)
    assert (result.steps, result.history) == (6, make().fit(data, epochs=2, batch_size=8).history)


def test_reading_batches_between_two_calls_takes_nothing_from_the_training(make, data):
    loader, trainer = Loader(data, 8), make()
    trainer.fit(loader, epochs=1)
    for _ in range(2):
        next(iter(loader))
    for number, batch in enumerate(trainer.epoch(loader)):
        trainer.step(batch)
        if number == 1:
            break
    next(iter(loader))
    for batch in trainer.epoch(loader):
        trainer.step(batch)
    assert trainer.history == make().fit(data, epochs=2, batch_size=8).history
    assert trainer.updates == 6


def test_a_cursor_that_was_loaded_is_kept(make, data):
    loader, again = Loader(data, 8), Loader(data, 8)
    batches = [batch[0].tolist() for batch in loader]
    loader.set_epoch(0)
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    next(iter(again))  # read a batch from there
    seen = []

    def on_step_end(batch):
        seen.append(batch[0].tolist())

    make(hooks=[on_step_end]).fit(again, epochs=1)
    assert seen == batches[1:]


def test_a_step_function_may_take_a_batch_of_named_parts_by_keyword(make, data):
    x, y = data
    named = {"x": x, "y": y}

    def by_keyword(model, **batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    def of_dict(model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    results = [
        make(step_fn=step_fn, seed=0).fit(named, epochs=2, batch_size=5, eval_data=named)
        for step_fn in (by_keyword, of_dict)
    ]
    assert results[0].history == results[1].history
