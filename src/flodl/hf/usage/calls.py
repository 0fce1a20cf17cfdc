"""Errors that explain a call with the wrong arguments, and name those that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from flodl.core import HFError
from flodl.core.usage.calls import explain_calls, hint_at_argument

P = ParamSpec("P")
R = TypeVar("R")

_LABELS = "Pass the names in the order of their ids: labels=['negative', 'positive']."
_TRIMMED = "Leave it out: texts are cut to max_length tokens, and each batch is padded to its longest text."
_NOTHING_RUNS = "Leave it out: nothing in a checkpoint is executed."

# Names that other libraries use for an argument, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(("torch_dtype",), "Write dtype=…."),
    **dict.fromkeys(("device_map",), "Write device='cuda:0'."),
    **dict.fromkeys(("id2label", "label2id", "label_names", "classes"), _LABELS),
    **dict.fromkeys(("num_classes",), "Write num_labels=…, or labels=… with their names."),
    **dict.fromkeys(
        ("ignore_mismatched_sizes",),
        "Leave it out: num_labels=… or labels=… replaces a head of another size.",
    ),
    **dict.fromkeys(("trust_remote_code",), _NOTHING_RUNS),
    **dict.fromkeys(
        ("attn_implementation", "use_safetensors", "low_cpu_mem_usage"), "Leave it out: this is automatic."
    ),
    **dict.fromkeys(("use_auth_token",), "Write token=…."),
    **dict.fromkeys(("padding", "truncation", "pad_to_max_length"), _TRIMMED),
    **dict.fromkeys(("return_tensors",), "Leave it out: tensors are returned."),
    **dict.fromkeys(("return_all_scores",), "Leave it out: all labels are returned, the best first."),
    **dict.fromkeys(("show_progress_bar", "verbose"), "Write progress=True or progress=False."),
    **dict.fromkeys(("normalize_embeddings",), "Write normalize=…."),
    **dict.fromkeys(
        ("convert_to_tensor", "convert_to_numpy"), "Leave it out: a tensor on the CPU is returned."
    ),
    **dict.fromkeys(("grouped_entities",), "Write aggregation_strategy='simple' or 'none'."),
    **dict.fromkeys(("overwrite", "exist_ok"), "Write force=True."),
    **dict.fromkeys(("device",), "Move the model: model.to('cuda')."),
    **dict.fromkeys(("shuffle", "seed"), "It is an option of Loader and Trainer."),
    **dict.fromkeys(("batch_size",), "Pass it to trainer.fit(data, epochs=…, batch_size=…), or to Loader."),
    **dict.fromkeys(("tokenizer",), "Set model.tokenizer."),
}


class HFCallError(HFError, TypeError):
    """A function for Hugging Face models was called with the wrong arguments."""


def explained(
    example: str, *, name: str = "", options: Callable[[], Sequence[str]] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: a call with the wrong arguments raises an error with advice.

    For a function that passes its other keywords on, `options` returns those that are accepted.

    >>> @explained("Write cut(texts).", options=lambda: ["max_length"])
    ... def cut(texts, *, progress=None, **options): ...
    >>> cut(["a text"], max_len=3)
    Traceback (most recent call last):
    flodl.hf.usage.calls.HFCallError: cut has no argument 'max_len'. Did you mean 'max_length'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        called = name or getattr(function, "__name__", "the function")
        checked = explain_calls(HFCallError, name=called, elsewhere=ELSEWHERE, example=example)(function)
        parameters = signature(function).parameters.values()
        own = [
            p.name
            for p in parameters
            if p.kind is not Parameter.VAR_KEYWORD and p.name not in ("self", "cls")
        ]
        if options is None:
            return checked

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for keyword in kwargs:
                if keyword not in own and keyword not in (accepted := options()):
                    hint = hint_at_argument(keyword, [*own, *accepted], ELSEWHERE)
                    raise HFCallError(f"{called} has no argument {keyword!r}. {hint}")
            return checked(*args, **kwargs)

        return call

    return decorate


def keywords_of(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the keyword-only arguments of a function."""
    found = signature(function).parameters.values()
    return tuple(p.name for p in found if p.kind is Parameter.KEYWORD_ONLY)
