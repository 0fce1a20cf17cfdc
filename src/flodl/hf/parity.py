"""Comparing a model with the same model in transformers: outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .extra import require
from .heads import Head
from .keys import named_tensors
from .models import PretrainedModel

BOUNDS = {Head.MASKED_LM: 1e-4}  # relative to max(1, |reference|)
_BOUND = 1e-5

# The sizes of a small model, and what the families need besides.
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2},
    "albert": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 6,
        "max_relative_positions": 10,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {"num_hidden_layers": 3, "local_attention": 6, "pad_token_id": 0},
}


def small_config(model_type: str) -> dict[str, Any]:
    """Return the config.json of a small model of a family, for comparisons that take no time.

    >>> small_config("albert")["embedding_size"]
    16
    """
    return {"model_type": model_type, **SMALL, **SMALL_OPTIONS.get(model_type, {})}


@dataclass(frozen=True)
class Difference:
    """The largest difference of one tensor, relative to max(1, |reference|)."""

    name: str
    value: float
    bound: float

    @property
    def is_ok(self) -> bool:
        """Whether the difference is within the bound; NaN is not."""
        return self.value <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.value:.1e} (at most {self.bound:.0e}){'' if self.is_ok else ', too large'}"
        )


@dataclass(frozen=True)
class Reference:
    """A model of transformers, and what it says about the keys of the checkpoint."""

    model: Any
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def load_reference(class_name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Reference:
    """Load a model with transformers, with plain attention and in evaluation mode."""
    with _quiet(require("transformers", "verification", "transformers")) as library:
        model, info = getattr(library, class_name).from_pretrained(
            folder,
            attn_implementation="eager",
            dtype=dtype,
            output_loading_info=True,
            local_files_only=True,
        )
    wrong = [*info.get("mismatched_keys", ()), *info.get("error_msgs", ())]
    missing = sorted(map(str, [*info["missing_keys"], *wrong]))
    return Reference(model.eval(), tuple(missing), tuple(sorted(info["unexpected_keys"])))


def example_inputs(model: PretrainedModel, *, length: int = 16, seed: int = 0) -> dict[str, Tensor]:
    """Return random token ids for two sequences, the second one padded."""
    sizes, pad = model.config.sizes, model.config.pad_token_id
    length = max(1, min(length, sizes.positions - 2 if sizes.positions > 2 else sizes.positions))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(min(4, sizes.vocab - 1), sizes.vocab, (2, length), generator=generator)
    if pad is not None:
        ids[ids == pad] = (pad + 1) % sizes.vocab
    mask = torch.ones_like(ids)
    mask[1, (length + 1) // 2 :] = 0
    ids[mask == 0] = pad or 0
    return {"input_ids": ids, "attention_mask": mask}


def compare(
    model: PretrainedModel, reference: Reference, *, gradients: bool, length: int = 16
) -> Iterator[Difference]:
    """Yield the differences of all outputs, and of the gradients of all parameters if requested.

    Gradients are those of a mean over rows (tokens, or sentences), as in training. Their differences are
    relative to the largest gradient of the model, so that the scale of the loss, and with it the number of
    rows and the size of the vocabulary, changes nothing.
    """
    inputs = example_inputs(model, length=length)
    bound = BOUNDS.get(model.head, _BOUND)
    ours = _outputs(model(**inputs), inputs["attention_mask"], model.head)
    theirs = _outputs(reference.model(**inputs), inputs["attention_mask"], model.head)
    for (name, value), expected in zip(ours.items(), theirs.values()):
        yield Difference(name, _distance(value, expected), bound)
    if not gradients:
        return
    for values in (ours, theirs):
        _loss(values.values()).backward()  # type: ignore[no-untyped-call]
    found = dict(reference.model.named_parameters(remove_duplicate=False))
    keys = model.family.keys(model.config, model.head)
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, parameter in named_tensors(model.graph):
        other = found.get(keys.key_of(name))
        if other is not None and parameter.grad is not None and other.grad is not None:
            pairs[keys.key_of(name)] = parameter.grad, other.grad
    largest = max((float(expected.abs().max()) for _, expected in pairs.values()), default=1.0)
    worst = Difference("gradients", 0.0, bound)
    for name, (gradient, expected) in pairs.items():
        difference = _distance(gradient / largest, expected / largest)
        if not difference <= worst.value:
            worst = Difference(f"gradient of {name}", difference, bound)
    yield worst


def _outputs(output: Any, mask: Tensor, head: Head) -> dict[str, Tensor]:
    """Return the outputs by name, without those at padding."""
    real = mask.bool()
    if isinstance(output, Tensor):
        name = "last_hidden_state" if head is Head.BASE else "logits"
        values = {name: output}
    elif isinstance(output, tuple):
        values = {"start_logits": output[0], "end_logits": output[1]}
    elif head is Head.QUESTION_ANSWERING:
        values = {"start_logits": output.start_logits, "end_logits": output.end_logits}
    else:
        name = "last_hidden_state" if head is Head.BASE else "logits"
        values = {name: output[name]}
    return {
        name: value[real]
        if value.shape[:2] == mask.shape and head is not Head.SEQUENCE_CLASSIFICATION
        else value
        for name, value in values.items()
    }


def _loss(outputs: Iterable[Tensor]) -> Tensor:
    """Return the mean over all rows of row · direction, with a random direction of length 1 per row."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for value in outputs:
        rows = value if value.dim() > 1 else value[:, None]
        direction = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        direction = direction / direction.norm(dim=-1, keepdim=True)
        total = total + (rows * direction.to(rows.dtype)).sum() / rows.shape[:-1].numel()
    return total


def _distance(value: Tensor, reference: Tensor) -> float:
    if value.shape != reference.shape:
        return float("inf")
    scaled = (value - reference).detach().abs() / reference.detach().abs().clamp(min=1)
    return float(scaled.max()) if scaled.numel() else 0.0


@contextmanager
def _quiet(library: Any) -> Iterator[Any]:
    """Silence the progress bars and warnings of transformers; what they say is in the report."""
    logging = library.utils.logging
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield library
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()
