"""One class per head: what it predicts on raw text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from flodl.core import HFError

from .heads import Head
from .models import PretrainedModel
from .usage.calls import explained, keywords_of

if TYPE_CHECKING:
    from .data import TextDataset

_NO_HEAD = (
    "a model without a head cannot be fine-tuned. Load it with AutoModelForSequenceClassification or "
    "another AutoModelFor… instead of AutoModel."
)


def _options_of(function: str, *others: str) -> Callable[[], Sequence[str]]:
    """Return a function that lists the options of one in `flodl.hf.predict`, which is imported only then."""
    return cache(lambda: (*others, *keywords_of(getattr(import_module(".predict", __package__), function))))


class Encoder(PretrainedModel):
    """A model without a head: hidden states, and embeddings of sentences."""

    head: ClassVar[Head] = Head.BASE

    @explained(
        "Write model.embed(texts).", name="model.embed", options=_options_of("embed_texts", "progress")
    )
    def embed(self, texts: str | Sequence[str], *, batch_size: int = 32, **options: Any) -> Tensor:
        """Return a vector for a text, or a matrix with one row per text, on the CPU.

        A sentence-transformers model says how tokens are pooled and whether vectors are normalized; for other
        models, the vector is the mean over the tokens. `options` are those of `flodl.hf.predict.embed_texts`.
        """
        from .predict import Pooling, embed_texts

        if "pooling" not in options and self.source is not None:
            options["pooling"] = Pooling.from_directory(self.source.root)
        progress = options.pop("progress", None)
        with self.running(batch_size=batch_size, progress=progress) as runner:
            return embed_texts(runner, texts, **options)

    @explained(
        "Write model.predict(texts).",
        name="model.predict",
        options=_options_of("embed_texts", "batch_size", "progress"),
    )
    def predict(self, texts: str | Sequence[str], **options: Any) -> Tensor:
        """Return the embeddings of texts, as `embed`."""
        return self.embed(texts, **options)

    def dataset(self, *args: Any, **options: Any) -> TextDataset:
        """Raise an error: without a head, there is nothing to train."""
        raise HFError(_NO_HEAD)

    def metrics(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Raise an error: without a head, there is nothing to evaluate."""
        raise HFError(_NO_HEAD)


class SequenceClassifier(PretrainedModel):
    """A model that classifies texts or pairs of texts."""

    head: ClassVar[Head] = Head.SEQUENCE_CLASSIFICATION

    @explained("Write model.predict(texts).", name="model.predict", options=_options_of("classify_texts"))
    def predict(
        self,
        texts: str | Sequence[str] | Sequence[tuple[str, str]],
        pairs: str | Sequence[str] | None = None,
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return labels with scores, the best first, for a text, a pair or a list of them."""
        from .predict import classify_texts

        options = {"labels": self.config.labels, "problem_type": self.config.problem_type, **options}
        with self.running(batch_size=batch_size, progress=progress) as runner:
            return classify_texts(runner, texts, pairs, **options)

    @explained(
        "Write model.dataset(texts, labels).",
        name="model.dataset",
        options=lambda: ("pack", "group_by_length"),
    )
    def dataset(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        labels: Sequence[Any] | None = None,
        *,
        pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> TextDataset:
        """Tokenize texts, or pairs of texts, for training and evaluation.

        Labels are names of the model's labels, class ids, or numbers for regression; several labels per
        text are lists of names or rows of 0 and 1. `options` are `pack` ("auto", True, False) and
        `group_by_length`.
        """
        from .data.build import classification_data

        return classification_data(
            self, texts, labels, pairs, max_length=max_length, progress=progress, **options
        )

    def metrics(self, dataset: TextDataset | None = None) -> dict[str, Any]:
        """Return the usual metrics: accuracy, F1 for several labels per text, none for regression."""
        from .metrics import Accuracy, MultilabelF1

        if self.config.problem_type == "multi_label_classification":
            return {"f1": MultilabelF1()}
        is_regression = self.config.problem_type == "regression" or self.config.num_labels == 1
        return {} if is_regression else {"accuracy": Accuracy()}


class TokenClassifier(PretrainedModel):
    """A model that labels tokens, such as names of persons and places."""

    head: ClassVar[Head] = Head.TOKEN_CLASSIFICATION

    @explained("Write model.predict(texts).", name="model.predict", options=_options_of("tag_texts"))
    def predict(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[str]],
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return the entities of a text with character offsets, or one list per text."""
        from .predict import tag_texts

        with self.running(batch_size=batch_size, progress=progress) as runner:
            return tag_texts(runner, texts, **{"labels": self.config.labels, **options})

    @explained(
        "Write model.dataset(words, tags), with a list of words and of tags per text.",
        name="model.dataset",
        options=lambda: ("pack", "group_by_length"),
    )
    def dataset(
        self,
        words: Sequence[Sequence[str]],
        tags: Sequence[Sequence[Any]] | None = None,
        *,
        max_length: int | None = None,
        label_all_pieces: bool = False,
        progress: bool | None = None,
        **options: Any,
    ) -> TextDataset:
        """Tokenize texts that are split into words, with a tag (name or id) per word.

        The first piece of a word has its tag and the others −100, unless `label_all_pieces` is True.
        `options` are `pack` ("auto", True, False) and `group_by_length`.
        """
        from .data.build import tagging_data

        return tagging_data(
            self,
            words,
            tags,
            max_length=max_length,
            label_all_pieces=label_all_pieces,
            progress=progress,
            **options,
        )

    def metrics(self, dataset: TextDataset | None = None) -> dict[str, Any]:
        """Return the usual metrics: precision, recall and F1 of entities, and the accuracy of tokens."""
        from .metrics import Accuracy, EntityF1

        return {"entity": EntityF1(self.config.labels), "token_accuracy": Accuracy()}


class QuestionAnswerer(PretrainedModel):
    """A model that finds the answer to a question in a text."""

    head: ClassVar[Head] = Head.QUESTION_ANSWERING

    @explained(
        "Write model.predict(question, context).",
        name="model.predict",
        options=_options_of("answer_questions"),
    )
    def predict(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return the answer to a question in a context, or one answer per question."""
        from .predict import answer_questions

        with self.running(batch_size=batch_size, progress=progress) as runner:
            return answer_questions(runner, question, context, **options)

    @explained(
        "Write model.dataset(questions, contexts, answers).",
        name="model.dataset",
        options=lambda: ("pack", "group_by_length"),
    )
    def dataset(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        answers: Sequence[Any] | None = None,
        *,
        max_length: int = 384,
        stride: int = 128,
        progress: bool | None = None,
        **options: Any,
    ) -> TextDataset:
        """Tokenize questions with their contexts, in windows that overlap by `stride` tokens.

        An answer is `{"text": ["Paris"], "answer_start": [42]}` as in SQuAD, or None. A window without the
        answer has the position of the first token. `options` are `pack` ("auto", True, False) and
        `group_by_length`.
        """
        from .data.build import question_data

        return question_data(
            self,
            questions,
            contexts,
            answers,
            max_length=max_length,
            stride=stride,
            progress=progress,
            **options,
        )

    def metrics(self, dataset: TextDataset | None = None) -> dict[str, Any]:
        """Return exact match and F1 of SQuAD over the questions of the dataset of the evaluation."""
        from .metrics import SquadScore

        if dataset is None:
            raise HFError("scoring answers needs the evaluation dataset: model.metrics(dataset).")
        return {"squad": SquadScore(dataset)}


class MaskedLM(PretrainedModel):
    """A model that predicts masked tokens."""

    head: ClassVar[Head] = Head.MASKED_LM

    @explained(
        "Write model.predict('a [MASK] text').", name="model.predict", options=_options_of("fill_masks")
    )
    def predict(
        self,
        texts: str | Sequence[str],
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return the most probable tokens for each mask of a text, or of each text of a list."""
        from .predict import fill_masks

        with self.running(batch_size=batch_size, progress=progress, takes_positions=True) as runner:
            return fill_masks(runner, texts, **options)

    @explained(
        "Write model.dataset(texts).", name="model.dataset", options=lambda: ("pack", "group_by_length")
    )
    def dataset(
        self,
        texts: Sequence[str],
        *,
        mask_probability: float = 0.15,
        max_length: int | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> TextDataset:
        """Tokenize texts whose tokens are masked when a batch is made; long texts are split.

        The masks depend on seed, epoch and position of the loader, so a resumed run sees the same ones.
        `options` are `pack` ("auto", True, False) and `group_by_length`.
        """
        from .data.build import masked_data

        return masked_data(
            self,
            texts,
            mask_probability=mask_probability,
            max_length=max_length,
            progress=progress,
            **options,
        )

    def metrics(self, dataset: TextDataset | None = None) -> dict[str, Any]:
        """Return the accuracy at masked positions."""
        from .metrics import Accuracy

        return {"accuracy": Accuracy()}


TASKS: dict[Head, type[PretrainedModel]] = {
    task.head: task for task in (Encoder, SequenceClassifier, TokenClassifier, QuestionAnswerer, MaskedLM)
}
