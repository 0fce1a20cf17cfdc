"""Wrong arguments raise an error of flodl with the right ones, and signatures stay as they are."""

import inspect
import pickle

import pytest
import torch
from torch import nn

import flodl
from flodl import Loader, Monitor, TrainStep
from flodl.core import CheckpointError, DataError, FlodlError, MonitorError, ScheduleError, StepError
from flodl.core.usage.calls import DataCallError, explain_calls, explain_creation
from flodl.data import cifar10, digits, fashion_mnist, mnist, tiny_shakespeare
from flodl.optim import CosineScheduler, MultiStepLR, OneCycleLR, PlateauScheduler, StepDecay, WarmupScheduler


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def step(**options):
    model = nn.Linear(2, 1)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, **options)


rows = torch.arange(4)
WRONG = [
    (lambda: step(clipnorm=1), StepError, "TrainStep has no argument 'clipnorm'. Did you mean 'clip_norm'?"),
    (lambda: step(max_grad_norm=1), StepError, "'max_grad_norm'. Write clip_norm="),
    (lambda: step(lr=0.1), StepError, "The learning rate belongs to the optimizer"),
    (lambda: TrainStep(nn.Linear(2, 1)), StepError, r"TrainStep needs 'optimizer'. Write TrainStep\(model,"),
    (lambda: Loader(rows, 2, shufle=True), DataError, "Loader has no argument 'shufle'. Did you mean"),
    (lambda: Loader(rows, 2, pin_memory=True), DataError, "'pin_memory'. Leave it out"),
    (lambda: Loader(rows), DataError, r"Loader needs 'batch_size'. Write Loader\(data, batch_size=32\)"),
    (
        lambda: Loader(rows, 2, True),
        DataError,
        "Loader got Tensor, int, bool by position, and takes only source, batch_size that way. Pass the",
    ),
    (lambda: Loader(rows, 2, batch_size=3), DataError, "Loader got 'batch_size' twice"),
    (lambda: Monitor(log_dir="runs"), MonitorError, "Monitor has no argument 'log_dir'. Write run_dir="),
    (lambda: Monitor(3, consol=False), MonitorError, "Did you mean 'console'"),
    (lambda: flodl.load_checkpoint("model.fdl"), CheckpointError, "load_checkpoint needs 'named_tensors'."),
    (lambda: flodl.load_checkpoint("a", {}, strict=1), CheckpointError, "'strict'. Pass the names or"),
    (lambda: mnist(path="data"), DataError, "mnist has no argument 'path'. Write root="),
    (lambda: fashion_mnist(split="test"), DataError, "Write train=True or train=False"),
    (lambda: cifar10(trian=False), DataError, "cifar10 has no argument 'trian'. Did you mean 'train'"),
    (lambda: tiny_shakespeare(sequence=3), DataError, "tiny_shakespeare has no argument 'sequence'"),
    (lambda: digits(), DataError, r"digits needs 'count'. Write digits\(1000\)"),
    (
        lambda: CosineScheduler(0.1, T_max=9),
        ScheduleError,
        "CosineScheduler has no argument 'T_max'. Write total=",
    ),
    (lambda: CosineScheduler(0.1), ScheduleError, r"needs 'min'. Write CosineScheduler\(base, min, total\)"),
    (lambda: StepDecay(0.1, stepsize=9), ScheduleError, "Did you mean 'step_size'"),
    (lambda: MultiStepLR(0.1, milestone=[9]), ScheduleError, "Did you mean 'milestones'"),
    (lambda: OneCycleLR(max_lr=0.1), ScheduleError, "OneCycleLR has no argument 'max_lr'. Write max="),
    (lambda: WarmupScheduler(warmup_steps=9), ScheduleError, "'warmup_steps'. Write warm="),
    (lambda: PlateauScheduler(0.1, patence=9), ScheduleError, "Did you mean 'patience'"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_arguments_are_an_error_with_the_right_ones(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, TypeError), "as in plain Python"


def test_signatures_and_names_stay_as_they_are():
    assert [*inspect.signature(Loader).parameters][:3] == ["source", "batch_size", "shuffle"]
    assert [*inspect.signature(TrainStep).parameters][:3] == ["model", "optimizer", "step_fn"]
    assert str(inspect.signature(CosineScheduler)).startswith("(base: 'float', min: 'float', total: 'int')")
    assert (mnist.__name__, mnist.__module__) == ("mnist", "flodl.data.datasets.mnist")
    schedule = CosineScheduler(0.1, 0.0, 9)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_a_type_error_from_inside_is_not_taken_for_a_wrong_call():
    @explain_creation(DataCallError)
    class Rows:
        def __init__(self, path):
            self.size = len(path)

    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)") as caught:
        Rows(3)
    assert not isinstance(caught.value, FlodlError)


def test_a_function_that_takes_any_arguments_is_called_as_it_is():
    @explain_calls(DataCallError)
    def count(*parts, **named):
        return len(parts) + len(named)

    assert count(1, 2, three=3) == 3


def test_a_function_without_positional_arguments_names_those_it_has():
    @explain_calls(DataCallError)
    def save(*, wait=True, reason=""): ...

    with pytest.raises(
        DataCallError, match=r"save got str, and takes nothing by position\. .*wait=…, reason=…"
    ):
        save("x.pt")
