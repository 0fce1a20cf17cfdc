"""Datasets from raw text, one function per head; `model.dataset` calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flodl.core import HFError, log
from flodl.core.formats import a_type

from ..usage.values import integer
from .dataset import TextDataset
from .labels import align_tags, class_labels, problem_of, tag_ids
from .layout import Layout
from .masking import Masking
from .spans import encode_questions
from .targets import NoTargets, SpanTargets, Targets, TextTargets, TokenTargets
from .tokens import Array, Tokens, Truncated, collect, encoded, flat, warn_about_empty
from .vocabulary import UsedVocabulary

if TYPE_CHECKING:
    from ..models import PretrainedModel


def classification_data(
    model: PretrainedModel,
    texts: Sequence[Any],
    labels: Sequence[Any] | None,
    pairs: Sequence[str] | None,
    *,
    max_length: int | None,
    progress: bool | None,
    **options: Any,
) -> TextDataset:
    """Return texts, or pairs of texts, each with a label."""
    texts, pairs = _split_pairs(_listed(texts, "texts"), pairs)
    tokenizer = model.tokenizer
    limit = tokenizer.limits.checked(max_length)
    targets = None if labels is None else _targets(model, _listed(labels, "labels"), len(texts))
    cut = Truncated(limit)
    found = encoded(
        texts,
        pairs,
        progress=progress,
        encode=lambda part, second: tokenizer.encode(part, second, max_length=max_length, offsets=False),
    )
    types = tokenizer.limits.has_token_types and pairs is not None
    tokens = collect(cut.watch(found), types=types)
    cut.warn()
    warn_about_empty(tokens, tokenizer.backend.num_special_tokens_to_add(pairs is not None))
    return _dataset(
        model,
        tokens,
        NoTargets() if targets is None else TextTargets(targets),
        model.config.labels,
        **options,
    )


def tagging_data(
    model: PretrainedModel,
    words: Sequence[Sequence[str]],
    tags: Sequence[Sequence[Any]] | None,
    *,
    max_length: int | None,
    label_all_pieces: bool,
    progress: bool | None,
    **options: Any,
) -> TextDataset:
    """Return texts that are split into words, with a tag per word."""
    words = _listed(words, "words")
    tokenizer = model.tokenizer
    ids = None if tags is None else tag_ids(_listed(tags, "tags"), words, model.config.labels)
    cut = Truncated(tokenizer.limits.checked(max_length))
    found = encoded(
        words,
        progress=progress,
        encode=lambda part, _: tokenizer.encode(part, max_length=max_length, split_into_words=True),
    )
    rows: list[Array] = []

    def align() -> Iterable[Any]:
        for index, encoding in enumerate(cut.watch(found)):
            if ids is not None:
                rows.append(align_tags(encoding, ids[index], label_all_pieces=label_all_pieces))
            yield encoding

    tokens = collect(align(), types=False)
    cut.warn()
    targets = NoTargets() if ids is None else TokenTargets(flat(rows, "int32"))
    return _dataset(model, tokens, targets, model.config.labels, **options)


def question_data(
    model: PretrainedModel,
    questions: Sequence[str],
    contexts: Sequence[str],
    answers: Sequence[Any] | None,
    *,
    max_length: int,
    stride: int,
    progress: bool | None,
    **options: Any,
) -> TextDataset:
    """Return questions with their contexts, in windows, and the positions of the answers."""
    max_length = integer(max_length, "max_length", at_least=1)
    stride = integer(stride, "stride")
    windows = encode_questions(
        model.tokenizer,
        _listed(questions, "questions"),
        _listed(contexts, "contexts"),
        None if answers is None else _listed(answers, "answers"),
        max_length=max_length,
        stride=stride,
        progress=progress,
    )
    targets = NoTargets() if windows.spans is None else SpanTargets(windows.spans)
    return _dataset(model, windows.tokens, targets, questions=windows.questions, **options)


def masked_data(
    model: PretrainedModel,
    texts: Sequence[str],
    *,
    mask_probability: float,
    max_length: int | None,
    progress: bool | None,
    **options: Any,
) -> TextDataset:
    """Return texts whose tokens are masked again in each epoch; long texts are split, and nothing is lost."""
    tokenizer = model.tokenizer
    masking = Masking.of(tokenizer, mask_probability)
    found = encoded(
        _listed(texts, "texts"),
        progress=progress,
        encode=lambda part, _: tokenizer.encode(part, max_length=max_length, offsets=False),
    )
    tokens = collect((window for item in found for window in (item, *item.overflowing)), types=False)
    return _dataset(model, tokens, NoTargets(), masking=masking, **options)


def _dataset(
    model: PretrainedModel, tokens: Tokens, targets: Targets, labels: tuple[str, ...] = (), **options: Any
) -> TextDataset:
    """Return a dataset that knows the layout and the tokens of the model that made it."""
    vocabulary = UsedVocabulary.of(tokens.ids, model.tokenizer, labels)
    return TextDataset(tokens, Layout.of(model), targets, labels, vocabulary=vocabulary, **options)


def _targets(model: PretrainedModel, labels: Any, count: int) -> Array:
    """Return the labels of texts as numbers, and give a model without a problem type that of the labels."""
    config = model.config
    try:
        targets = class_labels(labels, count, config.labels, config.problem_type)
    except HFError as error:
        if not model.has_problem_of_labels or not _is_valid(labels, count, config.labels):
            raise
        raise HFError(
            f"{error} An earlier dataset(…) of this model, with other labels, set its "
            f"problem_type={config.problem_type!r}. If that was a mistake, load or create the model again."
        ) from None
    _adopt_problem(model, problem_of(targets, config.labels, config.problem_type))
    return targets


def _is_valid(labels: Any, count: int, names: tuple[str, ...]) -> bool:
    """Return whether a model without a problem type would accept these labels."""
    try:
        class_labels(labels, count, names, None)
    except HFError:
        return False
    return True


def _adopt_problem(model: PretrainedModel, problem_type: str | None) -> None:
    """Let metrics, predictions and exports agree with the loss for these labels."""
    config = model.config
    if problem_type != config.problem_type:
        log.msg(
            f"hf: the labels set problem_type={problem_type!r} of the model, which predictions, metrics and "
            "exports use"
        )
        raw = {**config.raw, "problem_type": problem_type}
        model.config = replace(config, problem_type=problem_type, raw=raw)
        model.has_problem_of_labels = True


def _listed(values: Any, name: str) -> Any:
    """Return a sequence; a single text is a mistake."""
    is_number = getattr(values, "ndim", 1) == 0
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable) or is_number:
        raise HFError(f"{name} is {a_type(values)}; expected a list with an item per text.")
    return values if isinstance(values, Sequence) else list(values)


def _split_pairs(texts: Sequence[Any], pairs: Any) -> tuple[Sequence[Any], Any]:
    """Return first and second texts, which may have been passed as pairs."""
    if pairs is not None:
        return texts, _listed(pairs, "pairs")
    if len(texts) and all(isinstance(text, tuple | list) and len(text) == 2 for text in texts):
        return [text[0] for text in texts], [text[1] for text in texts]
    return texts, None
