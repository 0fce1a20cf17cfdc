"""Wrong arguments of the functions of flodl.cli, flodl.optim and flodl.checkpoint are errors of flodl."""

import inspect
import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from flodl import checkpoint, cli, optim
from flodl.core import FlodlError

# Records, types and interfaces, which flodl creates or the user implements; `fdl`; a decorator; and what
# flodl.hf calls for the names of labels.
LEFT_OUT = {
    "are_reordered",
    "check_labels",
    "checkpoint_labels",
    "labels_in",
    "labels_metadata",
    "name_labels",
    "Bundle",
    "Format",
    "Latest",
    "LoadReport",
    "MigrateReport",
    "PathOrStream",
    "Policy",
    "RustNode",
    "RustSlot",
    "Saved",
    "Schedule",
    "Snapshot",
    "StepSchedule",
    "main",
    "suggest_keywords",
}
# The options of `groups` are those of the optimizer.
TAKES_ANY = {"groups"}
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (cli, optim, checkpoint)
    for name in module.__all__
    if name not in LEFT_OUT
}


@dataclass
class Settings:
    lr: float = 0.1


def bridge():
    return optim.apply(optim.StepDecay(0.1, 2, 0.5), torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))


def methods():
    """Return the public methods of objects that the functions return, by name."""
    created = {
        "Args": cli.Args(Settings),
        "bridge": bridge(),
        "StepDecay": optim.StepDecay(0.1, 2, 0.5),
        "PlateauScheduler": optim.PlateauScheduler(0.1, 2, 0.5),
        "WarmupScheduler": optim.WarmupScheduler(optim.StepDecay(0.1, 2, 0.5), target=0.1, warm=2),
        "Snapshot": checkpoint.Snapshot({}),
    }
    # Recorded and compiled steps contain these, and training steps call them.
    inner = {"lr_tensor", "advance"}
    return {
        f"{name}.{method}": getattr(one, method)
        for name, one in created.items()
        for method, found in inspect.getmembers(type(one), inspect.isfunction)
        if method[0] != "_" and method not in inner and found.__module__.startswith("flodl")
    }


CALLS = PUBLIC | methods()


def parameters(call):
    return [*inspect.signature(call).parameters.values()]


@pytest.mark.parametrize("name", [one for one in CALLS if one.rpartition(".")[2] not in TAKES_ANY])
def test_an_unknown_keyword_is_an_error_that_names_the_function(name):
    function = name.rpartition(".")[2]
    with pytest.raises(FlodlError, match=rf"\b{function} has no argument 'foo_bar'\. .+") as caught:
        CALLS[name](foo_bar=1)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "name",
    [one for one, call in CALLS.items() if not any(p.kind is p.VAR_POSITIONAL for p in parameters(call))],
)
def test_surplus_arguments_are_an_error_that_names_the_function(name):
    function = name.rpartition(".")[2]
    with pytest.raises(FlodlError, match=rf"\b{function} got .*int") as caught:
        CALLS[name](*[1] * 20)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "name",
    [
        one
        for one, call in CALLS.items()
        if any(
            p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            for p in parameters(call)
        )
    ],
)
def test_missing_arguments_are_an_error_that_names_the_first(name):
    function, first = name.rpartition(".")[2], parameters(CALLS[name])[0].name
    with pytest.raises(FlodlError, match=rf"\b{function} needs '{first}'"):
        CALLS[name]()


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: cli.option(1, type=int), "option has no argument 'type'. Annotate the field: x: int = …."),
        (lambda: cli.option(1, nargs=2), "Annotate the field as list[T] or tuple[T, U]."),
        (lambda: cli.option(1, "help"), "option got int, str by position, and takes only default that way."),
        (lambda: cli.option(1, hlep="a"), "Did you mean 'help'?"),
        (lambda: cli.Args(Settings, prog="train.py"), "Args has no argument 'prog'. Write name='train.py'."),
        (
            lambda: cli.Args(Settings).parse(["--lr", "1"], "x"),
            "parse got list, str by position, and takes only argv",
        ),
        (lambda: optim.clip_grad_norm([], 1.0, norm_type=1), "Leave it out: the norm is the 2-norm."),
        (lambda: optim.clip_grad_value([], clip_value=1.0), "Write value=…."),
        (lambda: optim.apply(scheduler=1), "Did you mean 'schedule'?"),
        (
            lambda: checkpoint.read_checkpoint("a", map_location="cpu"),
            "Leave it out: tensors are loaded onto the",
        ),
        (
            lambda: checkpoint.load_checkpoint("a", {}, strict=False),
            "Pass the names or patterns that may differ",
        ),
        (lambda: checkpoint.BackgroundWriter("a", keeps=3), "Did you mean 'keep'?"),
    ],
)
def test_the_names_of_other_libraries_are_errors_with_what_to_write(call, advice):
    with pytest.raises(FlodlError, match=re.escape(advice)):
        call()
