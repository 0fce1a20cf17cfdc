"""What several devices cannot do is refused before any process starts."""

import threading

import pytest
import torch

from flodl import Trainer
from flodl.core import TrainError
from flodl.data import Loader

OPTIMIZER = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1), "monitor": False}


def loss_of(model, x):
    return model(x).square().mean()


def trainer_on(devices=("cpu", "cpu"), step_fn=loss_of, **settings):
    return Trainer(torch.nn.Linear(2, 1), step_fn, devices=devices, **OPTIMIZER, **settings)


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": []}, r"devices=\[\]. Write devices=\['cuda:0', 'cuda:1'\]"),
        ({"devices": 0}, "devices=0"),
        ({"devices": "cpu"}, "devices='cpu'. Write devices="),
        ({"devices": ["cpu", "gpu"]}, r"devices\[1\]='gpu' is not a device"),
        ({"policy": "ddp"}, "policy='ddp'"),
        ({"policy": "asinc"}, "Did you mean 'async'?"),
        ({"backend": "gloo"}, "backend='gloo'"),
        ({"backend": "nccl"}, "backend='nccl' needs CUDA devices, and devices are cpu, cpu"),
        ({"wire": "fp8"}, "wire='fp8'"),
        ({"outer": "momentum"}, "outer='momentum'"),
        ({"outer": 3}, "outer=3 is not an outer optimizer"),
        ({"policy": "sync", "outer": "nesterov"}, "every gradient"),
        ({"device": "cpu"}, "device='cpu' and devices="),
        ({"ema": 0.99}, "ema=0.99 is not available with several devices"),
        ({"nan": "rollback", "checkpoint_dir": "runs"}, "nan='rollback' is not available"),
        ({"devices": None, "policy": "sync"}, "policy= is for several devices, and devices= is not given"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(TrainError, match=message):
        trainer_on(**settings)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([torch.ones(4, 2)]), "the training data is an iterable"),
        ([torch.ones(4, 2)], "the training data is an iterable"),
        (torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2), r"fit\(loader.dataset, batch_size"),
        (Loader((torch.ones(2) for _ in range(4)), batch_size=2), "the training data is an iterable"),
    ],
)
def test_data_that_cannot_be_divided(data, message):
    with pytest.raises(TrainError, match=message):
        trainer_on().fit(data, epochs=1)


def test_a_part_that_cannot_be_sent_is_named():
    lock = threading.Lock()

    def with_lock(model, x):
        with lock:
            return model(x).square().mean()

    with pytest.raises(TrainError, match="the step function cannot be sent to other processes: TypeError"):
        trainer_on(step_fn=with_lock).fit(torch.ones(8, 2), epochs=1, batch_size=2)
    trainer = trainer_on()
    trainer.model.lock = lock
    with pytest.raises(TrainError, match="the model cannot be sent to other processes") as caught:
        trainer.fit(torch.ones(8, 2), epochs=1, batch_size=2)
    assert caught.value.path == "model"


def test_a_wrong_step_function_fails_in_the_dry_pass():
    def wrong(model, x):
        return {"loss": model(x)}

    with pytest.raises(Exception, match="loss"):
        trainer_on(step_fn=wrong).fit(torch.ones(8, 2), epochs=1, batch_size=2)


def test_loops_of_the_user_and_step_hooks_are_for_one_device():
    trainer = trainer_on()
    with pytest.raises(TrainError, match=r"trainer.epoch\(\) trains in this process"):
        trainer.epoch(torch.ones(8, 2), 2)
    with pytest.raises(TrainError, match=r"trainer.step\(\) trains in this process"):
        trainer.step(torch.ones(2, 2))

    class EachStep:
        def on_step_end(self, step): ...

    with pytest.raises(TrainError, match="a hook has on_step_end"):
        trainer_on(hooks=[EachStep()]).fit(torch.ones(8, 2), epochs=1, batch_size=2)


def test_parameters_outside_the_model_are_not_averaged():
    model, extra = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.1)
    trainer = Trainer(model, loss_of, optimizer=optimizer, devices=["cpu"] * 2, monitor=False)
    with pytest.raises(TrainError, match="1 parameters that are not in the model"):
        trainer.fit(torch.ones(8, 2), epochs=1, batch_size=2)


def test_a_device_takes_precedence_over_launched_ranks_with_a_warning(monkeypatch, capsys):
    monkeypatch.setenv("FLODL_LAUNCH", '{"on": "local", "ranks": [2, 2]}')
    trainer_on(None, device="cpu").fit(torch.ones(8, 2), epochs=1, batch_size=4)
    shown = capsys.readouterr().err
    assert "device='cpu' takes precedence over `fdl launch` (local: 2 ranks)" in shown
    assert "Leave out device to train on them" in shown


@pytest.mark.parametrize("settings", [{"devices": None, "device": "cpu"}, {"devices": ["cpu", "cpu"]}])
def test_a_rank_of_torchrun_does_not_train_a_model_of_its_own(settings, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(TrainError, match=r"torchrun started this process.*Leave out device"):
        trainer_on(**settings)
