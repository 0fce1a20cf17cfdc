"""What a `Trainer` needs to fine-tune any head: the step function, and the outputs for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flodl.core import HFError
from flodl.core.formats import a_type

from .heads import Head
from .models import PretrainedModel


def compute_loss(
    model: PretrainedModel, inputs: Mapping[str, Any], labels: Any = None, *, weight: Tensor | None = None
) -> Tensor:
    """Return the loss of a batch: the step function of every head.

    `Trainer(model, compute_loss, optimizer=…)` trains on batches of `model.dataset(…)`. For weights of
    classes, pass `functools.partial(compute_loss, weight=torch.tensor([1.0, 5.0]))`.
    """
    if not isinstance(inputs, Mapping):
        raise HFError(
            f"the first part of a batch is {a_type(inputs)}; expected the inputs of the model "
            "by name. Train on model.dataset(texts, labels)."
        )
    _check_model(model, "compute_loss")
    if labels is None:
        raise HFError("the batch has no labels. Pass labels to model.dataset(…).")
    return model.compute_loss(inputs, labels, weight=weight)


# A trainer that has metrics but no outputs names this function before it trains.
vars(compute_loss)["metric_outputs"] = "flodl.hf.outputs"


def _mean_over(model: Any) -> str:
    """Return what the loss of a head is a mean over, if not the texts of a batch."""
    return {Head.TOKEN_CLASSIFICATION: "labeled tokens", Head.MASKED_LM: "masked tokens"}.get(
        getattr(model, "head", Head.BASE), ""
    )


# A trainer on several devices says where their gradients differ from those of one device.
vars(compute_loss)["mean_over"] = _mean_over


def outputs(model: PretrainedModel, inputs: Mapping[str, Any], labels: Any = None) -> tuple[Any, Any]:
    """Return predictions and labels of a batch: `Trainer(…, metrics=model.metrics(…), outputs=outputs)`."""
    _check_model(model, "outputs")
    return model.outputs(inputs, labels)


def _check_model(model: Any, function: str) -> None:
    """Raise for a model of another library."""
    # Wrappers, such as those of several devices, pass the methods of the model on.
    if callable(getattr(model, function, None)):
        return
    kind = type(model)
    suffixes = (head.suffix for head in Head if head is not Head.BASE)
    task = next((suffix for suffix in suffixes if kind.__name__.endswith(suffix)), "For…")
    folder = str(getattr(getattr(model, "config", None), "name_or_path", "") or "folder")
    raise HFError(
        f"{function} of flodl.hf got {a_type(model)} of {kind.__module__.split('.')[0]}; expected a model of "
        f"flodl.hf. Load it with flodl.hf.AutoModel{task}.from_pretrained({folder!r}), or write a step "
        "function for this model."
    )
