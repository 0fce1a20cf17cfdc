"""A number of another type is an error of flodl that shows the value, for every public function and class."""

import inspect
import re
from importlib import import_module

import pytest
import torch
from torch import nn

import flodl
from flodl import Loader, Monitor, Rng, Trainer, TrainStep, Trend, TrendGroup
from flodl import data as flodl_data
from flodl.checkpoint import BackgroundWriter, FileWriter, best, every, last, save_bundle
from flodl.core import FlodlError
from flodl.data import (
    LengthGroupedSampler,
    RandomCrop,
    RandomFlip,
    TokenShards,
    WeightedSampler,
    digits,
)
from flodl.engine import capture
from flodl.nn import FocalLoss, GaussianBlur, focal_loss, gaussian_blur_2d, trunc_normal_, uniform_bias_
from flodl.optim import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    PlateauScheduler,
    StepDecay,
    WarmupScheduler,
    clip_grad_norm,
    clip_grad_value,
)
from flodl.train import (
    AveragedWeights,
    ClassAccuracy,
    ClassF1,
    ConfusionMatrix,
    EarlyStopping,
    Phase,
    ReduceOnPlateau,
)

DATA = torch.ones(8, 2), torch.zeros(8, 1)


def model():
    return nn.Linear(2, 1)


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def trainer(**settings):
    return Trainer(
        model(),
        loss_of,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
        **settings,
    )


def step(**settings):
    one = model()
    return TrainStep(one, torch.optim.SGD(one.parameters(), lr=0.1), loss_of, tier="eager", **settings)


def gradients():
    one = model()
    one(DATA[0]).sum().backward()
    return [*one.parameters()]


def tokens(**settings):
    return TokenShards(torch.arange(40), **{"seq_len": 4, **settings})


X = torch.zeros(4, 3)
IMAGES = torch.zeros(2, 1, 4, 4)
LABELS = torch.zeros(4, dtype=torch.int64)
TREND = Trend([3.0, 2.0, 1.0])
GROUP = TrendGroup({"a": TREND})

# Each call with a function that passes one number to it, and the other arguments as they should be.
CALLS = {
    "EarlyStopping": {
        "patience": lambda v: EarlyStopping("loss", patience=v),
        "tol": lambda v: EarlyStopping("loss", tol=v),
    },
    "ReduceOnPlateau": {
        "factor": lambda v: ReduceOnPlateau("loss", factor=v),
        "patience": lambda v: ReduceOnPlateau("loss", patience=v),
        "tol": lambda v: ReduceOnPlateau("loss", tol=v),
        "least": lambda v: ReduceOnPlateau("loss", least=v),
    },
    "Phase": {"epoch": lambda v: Phase(v)},
    "ClassAccuracy": {"dim": lambda v: ClassAccuracy(3, dim=v)},
    "ClassF1": {"dim": lambda v: ClassF1(3, dim=v)},
    "ConfusionMatrix": {"dim": lambda v: ConfusionMatrix(3, dim=v)},
    "AveragedWeights": {"decay": lambda v: AveragedWeights(model(), decay=v)},
    "Trainer": {
        name: (lambda v, name=name: trainer(**{name: v}))
        for name in (
            "clip_norm",
            "clip_value",
            "accumulate",
            "save_every",
            "save_every_steps",
            "log_every",
            "ema",
            "seed",
        )
    }
    | {
        "fit.epochs": lambda v: trainer().fit(DATA, epochs=v, batch_size=4),
        "fit.batch_size": lambda v: trainer().fit(DATA, epochs=1, batch_size=v),
        "fit.limit": lambda v: trainer().fit(DATA, epochs=1, batch_size=4, limit=v),
        "epoch.batch_size": lambda v: next(trainer().epoch(DATA, v)),
        "epoch.limit": lambda v: next(trainer().epoch(DATA, 4, limit=v)),
        "evaluate.batch_size": lambda v: trainer().evaluate(DATA, v),
        "loader.batch_size": lambda v: trainer().loader(DATA, v),
        "running.epochs": lambda v: trainer().running(v).__enter__(),
        "scale_lr.factor": lambda v: trainer().scale_lr(v),
        "scale_lr.least": lambda v: trainer().scale_lr(0.5, least=v),
        "find_lr.batch_size": lambda v: trainer().find_lr(DATA, v),
    }
    | {
        f"find_lr.{name}": (lambda v, name=name: trainer().find_lr(DATA, 4, **{name: v}))
        for name in ("min_lr", "max_lr", "num_steps", "stop_factor")
    },
    "TrainStep": {
        name: (lambda v, name=name: step(**{name: v}))
        for name in ("clip_norm", "clip_value", "accumulate", "tune_budget_s")
    }
    | {"call.samples": lambda v: step().call(DATA, samples=v)},
    "Loader": {
        name: (lambda v, name=name: Loader(DATA, **{"batch_size": 4, "device": "cpu", name: v}))
        for name in ("batch_size", "seed", "prefetch", "memory_cap")
    }
    | {
        "num_workers": lambda v: Loader([*zip(*DATA)], 4, num_workers=v),
        "shuffle_buffer": lambda v: Loader(iter([1, 2]), 4, shuffle_buffer=v),
        "set_epoch.epoch": lambda v: Loader(DATA, 4).set_epoch(v),
        "sample_indices.start": lambda v: Loader(DATA, 4).sample_indices(v, 2),
        "sample_indices.stop": lambda v: Loader(DATA, 4).sample_indices(0, v),
        "read_again.stop": lambda v: Loader(DATA, 4).read_again(0, v),
    },
    "Monitor": {
        "total_epochs": lambda v: Monitor(v),
        "step_rate": lambda v: Monitor(1, step_rate=v),
        "rank": lambda v: Monitor(1, rank=v),
    },
    "Rng": {
        "seed": lambda v: Rng(v),
        "integer.bound": lambda v: Rng(0).integer(v),
        "range.low": lambda v: Rng(0).range(v, 3),
        "range.high": lambda v: Rng(0).range(0, v),
        "normal.mean": lambda v: Rng(0).normal(v, 1.0),
        "normal.std": lambda v: Rng(0).normal(0.0, v),
        "bernoulli.p": lambda v: Rng(0).bernoulli(v),
        "permutation.count": lambda v: Rng(0).permutation(v),
    },
    "manual_seed": {"seed": lambda v: flodl.manual_seed(v)},
    "set_verbosity": {"level": lambda v: flodl.set_verbosity(v)},
    "summary": {
        "depth": lambda v: flodl.summary(model(), DATA[0], depth=v),
        "repeats": lambda v: flodl.summary(model(), DATA[0], repeats=v),
    },
    "Trend": {
        "closed_s": lambda v: Trend([1.0], closed_s=v),
        "last.n": lambda v: TREND.last(v),
        "slope.n": lambda v: TREND.slope(v),
        "stalled.n": lambda v: TREND.stalled(v, 0.1),
        "stalled.tol": lambda v: TREND.stalled(2, v),
        "improving.n": lambda v: TREND.improving(v),
        "converged.n": lambda v: TREND.converged(v, 0.1),
        "converged.tol": lambda v: TREND.converged(2, v),
    },
    "TrendGroup": {
        "slopes.n": lambda v: GROUP.slopes(v),
        "mean_slope.n": lambda v: GROUP.mean_slope(v),
        "all_stalled.tol": lambda v: GROUP.all_stalled(2, v),
        "any_improving.n": lambda v: GROUP.any_improving(v),
    },
    "ArgmaxSelector": {
        "in_features": lambda v: flodl.ArgmaxSelector(v, 2),
        "num_choices": lambda v: flodl.ArgmaxSelector(2, v),
        "dim": lambda v: flodl.ArgmaxSelector(2, 2, dim=v),
    },
    "SigmoidRouter": {
        "in_features": lambda v: flodl.SigmoidRouter(v, 2),
        "num_choices": lambda v: flodl.SigmoidRouter(2, v),
        "dim": lambda v: flodl.SigmoidRouter(2, 2, dim=v),
    },
    "SoftmaxRouter": {
        "in_features": lambda v: flodl.SoftmaxRouter(v, 2),
        "num_choices": lambda v: flodl.SoftmaxRouter(2, v),
        "dim": lambda v: flodl.SoftmaxRouter(2, 2, dim=v),
    },
    "TopKRouter": {
        "in_features": lambda v: flodl.TopKRouter(v, 2, 1),
        "num_choices": lambda v: flodl.TopKRouter(2, v, 1),
        "k": lambda v: flodl.TopKRouter(2, 2, v),
        "dim": lambda v: flodl.TopKRouter(2, 2, 1, dim=v),
    },
    "FixedSelector": {"index": lambda v: flodl.FixedSelector(v)},
    "LearnedHalt": {"in_features": lambda v: flodl.LearnedHalt(v)},
    "ThresholdHalt": {"threshold": lambda v: flodl.ThresholdHalt(v)},
    "CosineScheduler": {
        "base": lambda v: CosineScheduler(v, 0.0, 10),
        "min": lambda v: CosineScheduler(0.1, v, 10),
        "total": lambda v: CosineScheduler(0.1, 0.0, v),
        "lr.step": lambda v: CosineScheduler(0.1, 0.0, 9).lr(v),
    },
    "CyclicLR": {
        "base": lambda v: CyclicLR(v, 1.0, 2),
        "max": lambda v: CyclicLR(0.1, v, 2),
        "up": lambda v: CyclicLR(0.1, 1.0, v),
        "down": lambda v: CyclicLR(0.1, 1.0, 2, v),
    },
    "ExponentialLR": {"base": lambda v: ExponentialLR(v, 0.9), "gamma": lambda v: ExponentialLR(0.1, v)},
    "MultiStepLR": {
        "base": lambda v: MultiStepLR(v, [2], 0.5),
        "milestones": lambda v: MultiStepLR(0.1, [v], 0.5),
        "gamma": lambda v: MultiStepLR(0.1, [2], v),
    },
    "OneCycleLR": {
        "max": lambda v: OneCycleLR(v, 10),
        "total": lambda v: OneCycleLR(0.1, v),
        "warmup_frac": lambda v: OneCycleLR(0.1, 10, v),
    },
    "PlateauScheduler": {
        name: (
            lambda v, name=name: PlateauScheduler(
                **{"base": 0.1, "patience": 2, "factor": 0.5, "min": 0.0, name: v}
            )
        )
        for name in ("base", "patience", "factor", "min")
    },
    "StepDecay": {
        "base": lambda v: StepDecay(v, 2, 0.5),
        "step_size": lambda v: StepDecay(0.1, v, 0.5),
        "gamma": lambda v: StepDecay(0.1, 2, v),
        "preview.total_steps": lambda v: StepDecay(0.1, 2, 0.5).preview(v),
        "preview.width": lambda v: StepDecay(0.1, 2, 0.5).preview(9, width=v),
    },
    "WarmupScheduler": {
        "target": lambda v: WarmupScheduler(StepDecay(0.1, 2, 0.5), target=v, warm=2),
        "warm": lambda v: WarmupScheduler(StepDecay(0.1, 2, 0.5), target=0.1, warm=v),
    },
    "clip_grad_norm": {"max_norm": lambda v: clip_grad_norm(gradients(), v)},
    "clip_grad_value": {"value": lambda v: clip_grad_value(gradients(), v)},
    "LengthGroupedSampler": {"batch_size": lambda v: LengthGroupedSampler([1, 2, 3], v)},
    "RandomCrop": {"padding": lambda v: RandomCrop(v), "fill": lambda v: RandomCrop(1, fill=v)},
    "RandomFlip": {"p": lambda v: RandomFlip(v)},
    "Normalize": {
        "mean": lambda v: flodl_data.Normalize([v], [1.0]),
        "std": lambda v: flodl_data.Normalize([0.0], [v]),
    },
    "WeightedSampler": {"num_samples": lambda v: WeightedSampler([1.0, 2.0], num_samples=v)},
    "digits": {
        "count": lambda v: digits(count=v),
        "seed": lambda v: digits(count=4, seed=v),
        "size": lambda v: digits(count=4, size=v),
    },
    "FocalLoss": {
        "alpha": lambda v: FocalLoss(alpha=v),
        "gamma": lambda v: FocalLoss(gamma=v),
        "ignore_index": lambda v: FocalLoss(ignore_index=v),
    },
    "focal_loss": {
        "alpha": lambda v: focal_loss(X, LABELS, alpha=v),
        "gamma": lambda v: focal_loss(X, LABELS, gamma=v),
        "ignore_index": lambda v: focal_loss(X, LABELS, ignore_index=v),
    },
    "GaussianBlur": {"sigma": lambda v: GaussianBlur(v)},
    "gaussian_blur_2d": {"sigma": lambda v: gaussian_blur_2d(IMAGES, v)},
    "Reshape": {"shape": lambda v: flodl.nn.Reshape([v])},
    "load_balancing_loss": {
        "top_k": lambda v: flodl.nn.load_balancing_loss(torch.full((4, 2), 0.5), top_k=v)
    },
    "trunc_normal_": {
        name: (lambda v, name=name: trunc_normal_(torch.zeros(4), **{name: v}))
        for name in ("mean", "std", "a", "b")
    },
    "uniform_bias_": {"fan_in": lambda v: uniform_bias_(torch.zeros(4), v)},
    "best": {"n": lambda v: best("loss", n=v)},
    "every": {"k": lambda v: every(v)},
    "last": {"n": lambda v: last(v)},
    "save_bundle": {"step": lambda v: save_bundle("bundles", v, {"model": {}})},
    "BackgroundWriter": {"depth": lambda v: BackgroundWriter("folder", depth=v)},
    "FileWriter": {"depth": lambda v: FileWriter(depth=v)},
    "capture": {
        "max_captures": lambda v: capture(len, max_captures=v),
        "warmup": lambda v: capture(len, warmup=v),
    },
    "TokenShards": {
        name: (lambda v, name=name: tokens(**{name: v}))
        for name in ("seq_len", "stride", "header_bytes", "dtype")
    },
}


# Their numbers come from flodl, or they only hold them.
RECORDS = {
    "Bundle",
    "Console",
    "Event",
    "FindLrResult",
    "FitResult",
    "Policy",
    "RustSlot",
    "Saved",
    "Schedule",
    "Snapshot",
}
# It passes them to TokenShards, once the text was downloaded.
ELSEWHERE = {"tiny_shakespeare"}
PACKAGES = ("flodl", "flodl.train", "flodl.optim", "flodl.data", "flodl.nn", "flodl.checkpoint")


def numbers_of(function):
    """Return the parameters of a function that are annotated as numbers."""
    if not callable(function) or (isinstance(function, type) and issubclass(function, Exception)):
        return []
    found = [(one.name, str(one.annotation)) for one in inspect.signature(function).parameters.values()]
    return [name for name, type_ in found if re.search(r"\b(int|float)\b", type_) and "[" not in type_]


@pytest.mark.parametrize("wrong", ["1e-3", "int3", [1], 1j], ids=["text", "a word", "a list", "complex"])
@pytest.mark.parametrize(
    "call",
    [pytest.param(call, id=f"{name}.{one}") for name, calls in CALLS.items() for one, call in calls.items()],
)
def test_a_number_of_another_type_is_an_error_that_shows_it(call, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FlodlError, ValueError)) as caught:
        call(wrong)
    assert type(caught.value).__module__.startswith("flodl") or type(caught.value) is ValueError
    shown = str(caught.value)
    assert repr(wrong) in shown or "batch_size is a list" in shown


@pytest.mark.parametrize(
    "call",
    [pytest.param(call, id=f"{name}.{one}") for name, calls in CALLS.items() for one, call in calls.items()],
)
def test_the_message_about_a_long_value_can_be_read(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FlodlError, ValueError)) as caught:
        call([f"name {index}" for index in range(1000)])
    # flodl.nn and random numbers raise a plain ValueError, like torch.
    assert len(str(caught.value)) < 1000 or type(caught.value) is ValueError


def test_every_public_number_is_in_the_table():
    public = {
        name: getattr(import_module(package), name)
        for package in PACKAGES
        for name in import_module(package).__all__
    }
    numbers = {f"{name}.{one}" for name, item in public.items() for one in numbers_of(item)}
    known = {f"{name}.{one}" for name, calls in CALLS.items() for one in calls}
    assert {one for one in numbers - known if one.split(".")[0] not in RECORDS | ELSEWHERE} == set()


def test_a_lowest_rate_below_zero_is_rejected():
    with pytest.raises(FlodlError, match=r"ReduceOnPlateau: least=-1\. Use the lowest learning rate"):
        ReduceOnPlateau("loss", least=-1)
