"""Errors that explain a wrong call or attribute of a trainer, and show the correct way to write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from flodl.core import TrainError
from flodl.core.usage.calls import explain_calls

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
    **dict.fromkeys(("weight_decay", "momentum"), _RATE.replace("learning rate", "setting")),
    **dict.fromkeys(
        ("save_dir", "output_dir", "log_dir", "run_dir", "default_root_dir"), "Write checkpoint_dir=…."
    ),
    **dict.fromkeys(("logger", "loggers"), "Write Trainer(…, monitor=Monitor(…, sinks=[…]))."),
    **dict.fromkeys(
        ("early_stopping", "patience"), "Write Trainer(…, hooks=[EarlyStopping('eval_loss', patience=3)])."
    ),
    **dict.fromkeys(
        ("save_best", "best_metric", "load_best_model_at_end"),
        "Write Trainer(…, checkpoint_dir=…, keep=best('eval_loss')), and call trainer.restore_best().",
    ),
    **dict.fromkeys(("strategy", "num_nodes"), "Write Trainer(…, devices=…)."),
    "max_steps": "Training counts epochs: trainer.fit(data, epochs=…). A hook may call trainer.stop().",
    "resume": "Write trainer.fit(data, epochs=…, resume='auto').",
    "num_workers": "Write Loader(data, batch_size, num_workers=…), and pass the loader to fit.",
    "loader": "The data comes first: trainer.fit(loader, epochs=…).",
    **dict.fromkeys(("epochs", "epoch", "max_epochs", "num_epochs", "n_epochs"), _EPOCHS),
    **dict.fromkeys(
        ("train_data", "eval_data", "batch_size", "data", "train_dataset", "eval_dataset"), _DATA
    ),
    **dict.fromkeys(
        ("val_data", "validation_data", "validation", "valid_data", "val_dataset"), "Write eval_data=…."
    ),
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


_EXAMPLE = {
    "fit": "Write trainer.fit((x, y), epochs=10, batch_size=32).",
    "epoch": "Write for batch in trainer.epoch((x, y), 32): trainer.step(batch).",
    "running": "Write with trainer.running(epochs=10): ….",
    "resume": "Write trainer.resume((x, y), 32), with the data that is trained on next.",
    "find_lr": "Write trainer.find_lr((x, y), 32).",
    "evaluate": "Write trainer.evaluate((x, y)).",
    "scale_lr": "Write trainer.scale_lr(0.1), which multiplies the learning rate.",
    "save": "It saves the run in checkpoint_dir. For a file with the weights, write "
    "save_checkpoint('model.fdl', model.state_dict()).",
    "Trainer": "Write Trainer(model, step_fn, optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3)).",
}


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Raise an error that teaches how to call a function if it is called with the wrong arguments.

    >>> @explained
    ... def fit(data, *, epochs): ...
    >>> fit(1, epoch=3)
    Traceback (most recent call last):
    flodl.train.checks.calls.WrongCallError: fit has no argument 'epoch'. Did you mean 'epochs'?
    """
    name = function.__name__ if function.__name__ != "__init__" else "Trainer"
    decorate = explain_calls(WrongCallError, name=name, elsewhere=ELSEWHERE, example=_EXAMPLE.get(name, ""))
    return decorate(function)
