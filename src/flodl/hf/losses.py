"""The loss of each head, equal to that of transformers for the same logits and labels.

Nothing waits for the device and no shape depends on the data, so a step that is captured can use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flodl.core import HFError
from flodl.core.formats import a_type

from .config import EncoderConfig
from .heads import Head
from .packing.rows import Rows, rows_of

# The label of a token that does not count.
IGNORED = -100

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def compute_loss(
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    labels: Any,
    *,
    head: Head,
    config: EncoderConfig,
    masked_fraction: float = 0.25,
    weight: Tensor | None = None,
) -> Tensor:
    """Run the model on its inputs and return the loss of its head.

    `weight` has a value for each class, as in torch's cross-entropy, for classes of texts or tokens.
    Masked LM computes logits at masked positions only, up to this fraction of all positions. In a packed
    batch, rows of pooled outputs without a sentence do not count, whatever their labels are.
    """
    if weight is not None:
        _check_weight(weight, head)
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            # With float labels, DeBERTa expects the probabilities of classes, the others several labels.
            soft = config.model_type == "deberta-v2"
            kind = config.problem_type
            rows = _packed_rows(inputs)
            present = None if rows is None else rows.length > 0
            return sequence_loss(
                forward(**inputs), labels, problem_type=kind, soft_labels=soft, present=present, weight=weight
            )
        case Head.TOKEN_CLASSIFICATION:
            return token_loss(forward(**inputs), labels, weight=weight)
        case Head.QUESTION_ANSWERING:
            start_logits, end_logits = forward(**inputs)
            return span_loss(start_logits, end_logits, labels, rows=_packed_rows(inputs))
        case Head.MASKED_LM:
            masked = select_masked(labels, fraction=masked_fraction)
            loss = masked_lm_loss(forward(**inputs, positions=masked.positions), masked.labels)
            return guarded(loss, masked)
        case _:
            raise HFError(
                "a model without a head has no loss. Load it with AutoModelFor… instead of AutoModel."
            )


def sequence_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    problem_type: str | None = None,
    soft_labels: bool = False,
    present: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Return the loss of a sequence classifier for logits [B, L].

    Class ids [B] use cross-entropy. Floats [B, L] use binary cross-entropy, because several labels may apply;
    with `soft_labels` or the problem type "single_label_classification", they are probabilities of classes. A
    model with a single output predicts a value, with the mean squared error. With `present` [B], only the
    rows count where it is true. With `weight` [L], which needs class ids, the mean is weighted by class.

    >>> logits = torch.zeros(2, 4)
    >>> round(sequence_loss(logits, torch.tensor([0, 3])).item(), 4)
    1.3863
    """
    kind = _problem(logits, labels, problem_type, soft_labels=soft_labels)
    if weight is not None and (kind != "single_label_classification" or labels.is_floating_point()):
        raise HFError(
            f"weight= needs class ids, one per text, and this is {kind.replace('_', ' ')} with labels of "
            f"{labels.dtype}. Write a step function with your own loss of model(**inputs)."
        )
    if kind == "regression":
        _expect(logits.numel() == labels.numel(), "regression", logits, labels, "as many values")
        return _mean(F.mse_loss, logits, labels.reshape_as(logits), present)
    if kind == "multi_label_classification":
        _expect(logits.shape == labels.shape, kind, logits, labels, "a 0 or 1 per label")
        return _mean(F.binary_cross_entropy_with_logits, logits, labels, present)
    if labels.is_floating_point():
        _expect(logits.shape == labels.shape, kind, logits, labels, "a probability per class")
        return _mean(F.cross_entropy, logits, labels, present)
    _expect(labels.numel() == logits.shape[0], kind, logits, labels, "a class id per text")
    if present is not None:
        labels = labels.flatten().masked_fill(~present, IGNORED)
    return F.cross_entropy(
        logits, labels.flatten().long(), ignore_index=IGNORED, weight=_as_logits(weight, logits)
    )


def token_loss(logits: Tensor, labels: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of logits [B, S, L] where the labels [B, S] are not −100.

    With `weight` [L], the mean is weighted by class.
    """
    _expect(logits.shape[:-1] == labels.shape, "token classification", logits, labels, "a label per token")
    wide = _wide(logits).flatten(0, -2)
    return F.cross_entropy(
        wide, labels.flatten().long(), ignore_index=IGNORED, weight=_as_logits(weight, wide)
    )


def span_loss(start_logits: Tensor, end_logits: Tensor, labels: Any, *, rows: Rows | None = None) -> Tensor:
    """Return the mean of the losses of starts and ends, for logits [B, S].

    The labels are a pair of positions [B], a mapping with `start_positions` and `end_positions`, or a tensor
    [B, 2]. Positions after the end of the sequence do not count; negative ones count as 0, as in
    transformers.

    The logits of a packed batch are [1, tokens], and `rows` says where its sentences are. Positions count
    from the first token of a sentence, and each softmax is over the tokens of one sentence.
    """
    start, end = span_labels(labels)
    losses = []
    for logits, positions in ((start_logits, start), (end_logits, end)):
        positions = positions.flatten()
        if rows is not None:
            logits = torch.where(rows.real, rows.spread(logits), torch.finfo(logits.dtype).min)
        length = logits.shape[1]
        _expect(
            len(positions) == len(logits),
            "question answering",
            logits,
            positions,
            "a start and an end per text",
        )
        positions = positions.long().clamp(0, length)
        if rows is not None:
            positions = torch.where(positions < rows.length, positions, length)
        losses.append(F.cross_entropy(logits, positions, ignore_index=length))
    return (losses[0] + losses[1]) / 2


def span_labels(labels: Any) -> tuple[Tensor, Tensor]:
    """Return starts and ends, however they are passed."""
    if isinstance(labels, Mapping):
        missing = {"start_positions", "end_positions"} - labels.keys()
        if missing:
            raise HFError(
                f"the labels of question answering have the keys {sorted(labels)}; expected start_positions "
                "and end_positions."
            )
        return labels["start_positions"], labels["end_positions"]
    if isinstance(labels, Tensor) and labels.ndim == 2 and labels.shape[1] == 2:
        return labels[:, 0], labels[:, 1]
    if isinstance(labels, Sequence) and len(labels) == 2:
        return labels[0], labels[1]
    shape = f" of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else ""
    raise HFError(
        f"the labels of question answering are {a_type(labels)}{shape}; expected (starts, ends), "
        "a dict with start_positions and end_positions, or a tensor [B, 2]."
    )


def masked_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [..., V] where the labels [...] are not −100."""
    _expect(
        logits.shape[:-1] == labels.shape, "masked language modeling", logits, labels, "a label per token"
    )
    return F.cross_entropy(_wide(logits).flatten(0, -2), labels.flatten().long(), ignore_index=IGNORED)


class Masked(NamedTuple):
    """Positions in the flattened batch that contain all masked ones, and the labels there."""

    positions: Tensor
    labels: Tensor
    overflow: Tensor


def select_masked(labels: Tensor, *, fraction: float = 0.25) -> Masked:
    """Select the masked positions of labels [B, S]: a fixed number, so that a captured step can use it.

    The number is the given fraction of all positions; where fewer are masked, the others have the label −100.
    `overflow` is true where more are masked than fit. In eager mode all positions are selected in that case;
    in a captured or compiled step, `guarded` makes the loss NaN instead of wrong.

    >>> labels = torch.full((4, 64), -100)
    >>> labels[0, 5] = 7
    >>> masked = select_masked(labels)
    >>> masked.positions.shape, masked.positions[0], masked.labels[:2]
    (torch.Size([64]), tensor(5), tensor([   7, -100]))
    """
    flat = labels.flatten()
    count = capacity(flat.numel(), fraction)
    masked = flat != IGNORED
    overflow = masked.sum() > count
    if count < flat.numel() and _may_wait(labels) and bool(overflow):
        count, overflow = flat.numel(), torch.zeros_like(overflow)
    # A stable sort of a flag: the masked positions first, in their order.
    positions = torch.argsort(masked.logical_not().to(torch.uint8), stable=True)[:count]
    return Masked(positions, flat[positions], overflow)


def guarded(loss: Tensor, masked: Masked) -> Tensor:
    """Return the loss, or NaN if more positions are masked than were selected."""
    return torch.where(masked.overflow, torch.full_like(loss, float("nan")), loss)


def capacity(positions: int, fraction: float) -> int:
    """Return how many of the positions are selected, a multiple of 64 where there are as many.

    >>> capacity(32 * 128, 0.25), capacity(100, 0.25), capacity(10, 0.25)
    (1024, 64, 10)
    """
    if not 0 < fraction <= 1:
        raise HFError(f"the fraction of masked positions is {fraction}; expected more than 0 and at most 1.")
    wanted = -(-int(positions * fraction) // 64) * 64
    return min(positions, max(wanted, 64))


def _check_weight(weight: object, head: Head) -> None:
    if not isinstance(weight, Tensor):
        raise HFError(f"weight is {a_type(weight)}. Pass a tensor with a value for each class.")
    if head not in (Head.SEQUENCE_CLASSIFICATION, Head.TOKEN_CLASSIFICATION):
        raise HFError(
            "weight= is for the classes of texts or tokens, which this head does not have. Leave it out, or "
            "write a step function with your own loss of model(**inputs)."
        )


def _as_logits(weight: Tensor | None, logits: Tensor) -> Tensor | None:
    return None if weight is None else weight.to(logits)


def _may_wait(tensor: Tensor) -> bool:
    """Whether the host may read a value: not in a compiled or captured step, nor where that is an error."""
    if torch.compiler.is_compiling():
        return False
    if not tensor.is_cuda:
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0


def _problem(logits: Tensor, labels: Tensor, problem_type: str | None, *, soft_labels: bool) -> str:
    if problem_type is not None:
        if problem_type not in PROBLEM_TYPES:
            raise HFError(f"problem_type is {problem_type!r}; expected one of {', '.join(PROBLEM_TYPES)}.")
        return problem_type
    if logits.shape[-1] == 1:
        return "regression"
    is_multi_label = labels.is_floating_point() and not soft_labels
    return "multi_label_classification" if is_multi_label else "single_label_classification"


def _packed_rows(inputs: Mapping[str, Any]) -> Rows | None:
    bounds = inputs.get("cu_seqlens")
    return None if bounds is None else rows_of(bounds, inputs["input_ids"].shape[1], inputs["longest"])


def _mean(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, present: Tensor | None) -> Tensor:
    """Return the mean loss, over all rows or those that are present."""
    labels = labels.to(logits.dtype)
    if present is None:
        return loss(logits, labels)
    counts = present.view(-1, *[1] * (labels.dim() - 1))
    losses = loss(logits, torch.where(counts, labels, 0), reduction="none")
    weights = (counts if losses.dim() > 1 else present).expand_as(losses)
    return torch.where(weights, losses, 0).sum() / weights.sum()


def _wide(logits: Tensor) -> Tensor:
    """Return logits in at least float32, as transformers computes these losses."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def _expect(is_right: bool, task: str, logits: Tensor, labels: Tensor, expected: str) -> None:
    if not is_right:
        raise HFError(
            f"{task.replace('_', ' ')}: the labels have the shape {tuple(labels.shape)} for logits of shape "
            f"{tuple(logits.shape)}; expected {expected}."
        )
