"""Attributes of a trainer that would have no effect, or that do not exist, raise an error with advice."""

from __future__ import annotations

from inspect import signature
from typing import Any

from flodl.core import TrainError
from flodl.core.usage.attributes import misspelled, unknown_attribute

from .calls import ELSEWHERE, UnknownAttributeError

_FIXED = frozenset({"average", "device", "model", "optimizer", "precision", "step_fn", "train_step"})

# What to write instead of assigning an attribute.
_INSTEAD_OF_ASSIGNING = {
    "model": "Load values into it with trainer.model.load_state_dict(…), or create a new Trainer.",
    "optimizer": "Change its settings in trainer.optimizer.param_groups, its rate with trainer.scale_lr(…), "
    "or create a new Trainer.",
    **dict.fromkeys(
        ("lr", "learning_rate"),
        "Multiply the rate with trainer.scale_lr(factor), or set it for each group: "
        "group['lr'] = … for group in trainer.optimizer.param_groups.",
    ),
    **dict.fromkeys(
        ("stop", "stopped", "should_stop", "stop_training", "should_training_stop"),
        "Call trainer.stop('reason').",
    ),
    **dict.fromkeys(("current_epoch", "global_step"), "A resumed run takes its progress from its folder."),
}
_OWN_VALUE = "Keep a value of your own in a variable or in an attribute of a hook."
# What to write instead of reading an attribute that does not exist.
_INSTEAD_OF_READING = {
    **dict.fromkeys(
        ("lr", "learning_rate", "current_lr"), "The rate is trainer.optimizer.param_groups[0]['lr']."
    ),
    **dict.fromkeys(
        ("hooks", "callbacks"),
        "Hooks are passed to Trainer(hooks=[…]) and cannot be changed later; keep the list.",
    ),
    **dict.fromkeys(("schedule", "scheduler"), "The schedule is trainer.train_step.schedule."),
    **dict.fromkeys(
        ("predict", "forward"),
        "Call the model. After fit it is in training mode, so first trainer.model.eval(), then "
        "`with torch.no_grad(): trainer.model(x)`.",
    ),
    **dict.fromkeys(
        ("ema", "ema_model", "averaged_model"),
        "The averaged weights are trainer.average; `with trainer.average.applied():` uses them in the model.",
    ),
    **dict.fromkeys(("to", "cuda", "cpu"), "A trainer stays on its device: Trainer(…, device=…)."),
    "parameters": "The parameters are those of the model: trainer.model.parameters().",
    **dict.fromkeys(("log", "logger"), "Pass your own Monitor, Trainer(…, monitor=monitor), and log to it."),
    **dict.fromkeys(("log_dir", "checkpoint_dir"), "The folder of the run is trainer.run_dir."),
    "summary": "Write flodl.summary(trainer.model, x).",
    **dict.fromkeys(
        ("best_metric", "best_score", "best"),
        "The row of the best epoch is trainer.result().best('eval_loss').",
    ),
    **dict.fromkeys(("loss", "train_loss"), "The losses are [row['loss'] for row in trainer.history]."),
    "average": "Nothing is averaged without ema: write Trainer(…, ema=0.999).",
    **dict.fromkeys(("train", "train_model"), "Write trainer.fit(data, epochs=…)."),
    **dict.fromkeys(("lr_find", "tune", "lr_finder"), "Write trainer.find_lr(data, batch_size=…)."),
    **dict.fromkeys(("test", "validate"), "Write trainer.evaluate(data)."),
    **dict.fromkeys(("metrics", "logged_metrics"), "The metrics of each epoch are rows of trainer.history."),
    **dict.fromkeys(("global_step", "steps", "num_steps"), "The number of updates is trainer.updates."),
    **dict.fromkeys(("current_epoch",), "The number of completed epochs is trainer.epochs."),
    **dict.fromkeys(
        ("load", "load_checkpoint", "restore"),
        "A run continues with fit(…, resume='auto') or trainer.resume(data); for weights in a file, write "
        "load_checkpoint('model.fdl', trainer.model.state_dict()).",
    ),
    **dict.fromkeys(
        ("state_dict", "load_state_dict", "save_checkpoint"),
        "A trainer saves itself: Trainer(checkpoint_dir=…), trainer.save(), trainer.resume(data).",
    ),
}


class CheckedAttributes:
    """The base of `Trainer`: assignments that would have no effect raise an error."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "_run" in vars(self) and not name.startswith("_"):
            _check_assignment(type(self), name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise unknown_attribute(
            self, name, UnknownAttributeError, known=_public(type(self)), instead=_INSTEAD_OF_READING
        )


def _check_assignment(kind: type, name: str, value: Any) -> None:
    is_own = kind.__module__.startswith("flodl.")
    arguments = frozenset(signature(kind).parameters) if is_own else frozenset()
    if name in _FIXED or name in arguments:
        advice = _INSTEAD_OF_ASSIGNING.get(name, f"Create a new Trainer({name}=…).")
        raise TrainError(
            f"trainer.{name} was assigned, but a trainer keeps what it was created with: the new value "
            f"would be ignored. {advice}"
        )
    found = getattr(kind, name, None)
    if isinstance(found, property):
        if found.fset is None:
            raise TrainError(f"trainer.{name} was assigned, but it is read-only: {_doc(kind, name)}")
    elif callable(found):
        if is_own or not callable(value):
            advice = _INSTEAD_OF_ASSIGNING.get(name, f"Call it: trainer.{name}(…).")
            raise TrainError(f"trainer.{name} was assigned, but it is a method. {advice}")
    elif is_own:
        similar = misspelled(name, (*arguments, *_public(kind)))
        guess = f"Did you mean {similar!r}?" if similar else _OWN_VALUE
        advice = _INSTEAD_OF_ASSIGNING.get(name) or ELSEWHERE.get(name) or guess
        raise TrainError(
            f"trainer.{name} was assigned, but a trainer has no such attribute: this has no effect. {advice}"
        )


def _doc(kind: type, name: str) -> str:
    return (getattr(kind, name).__doc__ or "").split("\n")[0]


def _public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")] + sorted(_FIXED)
