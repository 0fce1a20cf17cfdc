"""Errors that explain a wrong call or attribute of a trainer, and show the correct way to write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from flodl.core import TrainError
from flodl.core.paths import nearest, suggestion

P = ParamSpec("P")
R = TypeVar("R")

_RATE = (
    "The learning rate belongs to the optimizer: optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3)."
)
_LOSS = (
    "The loss is computed by the step function: Trainer(model, step_fn, …), with def step_fn(model, x, y)."
)
_EPOCHS = "Write trainer.fit(data, epochs=…)."
_DATA = "Data is passed to fit: trainer.fit(data, epochs=…, batch_size=…, eval_data=…)."
_COMPILE = "Choose a tier: tier='compiled', or tier='auto', the default, which compiles if that is faster."
_ACCELERATOR = "Write device='cuda:0', or device='auto', the default."

# Names that other frameworks use, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate"), _RATE),
    **dict.fromkeys(("loss", "loss_fn", "criterion"), _LOSS),
    **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "n_epochs"), _EPOCHS),
    **dict.fromkeys(
        ("train_data", "eval_data", "batch_size", "data", "train_dataset", "eval_dataset"), _DATA
    ),
    **dict.fromkeys(("val_data", "validation_data", "valid_data", "val_dataset"), "Write eval_data=…."),
    **dict.fromkeys(("callbacks", "callback"), "Write Trainer(…, hooks=[…])."),
    **dict.fromkeys(
        ("scheduler", "lr_scheduler"), "Write Trainer(…, schedule=…), with a schedule of flodl.optim."
    ),
    **dict.fromkeys(("compile", "jit", "torch_compile"), _COMPILE),
    **dict.fromkeys(("accelerator", "gpus", "gpu"), _ACCELERATOR),
    **dict.fromkeys(("bs", "batchsize"), "Write batch_size=…."),
    **dict.fromkeys(("validation_split", "val_split"), "Split the data yourself, and pass eval_data=…."),
    **dict.fromkeys(("gradient_clip_val", "grad_clip", "max_grad_norm"), "Write Trainer(…, clip_norm=…)."),
    **dict.fromkeys(
        ("accumulate_grad_batches", "gradient_accumulation_steps", "accumulation_steps"),
        "Write Trainer(…, accumulate=…).",
    ),
    **dict.fromkeys(("amp", "fp16", "bf16", "mixed_precision"), "Write Trainer(…, precision='bf16')."),
    "shuffle": "Training data is shuffled; for another order pass Loader(data, batch_size, shuffle=False).",
    "verbose": "monitor=False turns the output off; flodl.set_verbosity sets how much is printed.",
}


class WrongCallError(TrainError, TypeError):
    """A method of a trainer was called with arguments that it does not take."""


class UnknownAttributeError(TrainError, AttributeError):
    """A trainer does not have this attribute."""


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Raise an error that teaches how to call a function if it is called with the wrong arguments.

    >>> @explained
    ... def fit(data, *, epochs): ...
    >>> fit(1, epoch=3)
    Traceback (most recent call last):
    flodl.train.checks.calls.WrongCallError: fit has no argument 'epoch'. Did you mean 'epochs'?
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it comes from inside the function
            raise _wrong_call(function, args, kwargs) or error from None

    return call


def _wrong_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> WrongCallError | None:
    parameters = [*signature(function).parameters.values()]
    name = (
        function.__qualname__.removesuffix(".__init__").rpartition(".<locals>.")[2].rpartition("Trainer.")[2]
    )
    name = name or "Trainer"
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    known = [p.name for p in parameters if p.name != "self"]
    for keyword in kwargs:
        if keyword not in known:
            return WrongCallError(f"{name} has no argument {keyword!r}. {_hint(keyword, known)}")
    if len(args) > len(positional):
        return WrongCallError(_too_many(name, args, positional))
    given = {*positional[: len(args)], *kwargs}
    missing = [p.name for p in parameters if p.default is Parameter.empty and p.name not in given]
    if missing:
        return WrongCallError(f"{name} needs {missing[0]!r}. {_EXAMPLE.get(name, '')}".rstrip())
    return None


_EXAMPLE = {
    "fit": "Write trainer.fit(data, epochs=10, batch_size=32).",
    "Trainer": "Write Trainer(model, step_fn, optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3)).",
}


def _too_many(name: str, args: tuple[Any, ...], positional: list[str]) -> str:
    shown = [one for one in positional if one != "self"]
    kinds = ", ".join(type(one).__name__ for one in args[len(positional) - len(shown) :])
    text = f"{name} got {kinds} by position, and takes only {', '.join(shown)} that way."
    if name == "fit":
        return f"{text} Write fit((x, y), epochs=…) for inputs and targets, and pass everything else by name."
    return f"{text} {_EXAMPLE.get(name, 'Pass the other arguments by name.')}"


def _hint(keyword: str, known: list[str]) -> str:
    close = nearest(keyword, known, limit=1)
    if keyword in ELSEWHERE and not (close and _is_typo(keyword, close[0])):
        return ELSEWHERE[keyword]
    return suggestion(keyword, known, known_as="arguments")


def _is_typo(one: str, other: str) -> bool:
    """Return whether two names differ by only a few characters."""
    return bool(nearest(one, [other], limit=1)) and abs(len(one) - len(other)) <= 1
