"""One class per head: what it predicts on raw text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from .heads import Head
from .models import PretrainedModel


class Encoder(PretrainedModel):
    """A model without a head: hidden states, and embeddings of sentences."""

    head: ClassVar[Head] = Head.BASE

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

    def predict(self, texts: str | Sequence[str], **options: Any) -> Tensor:
        """Return the embeddings of texts, as `embed`."""
        return self.embed(texts, **options)


class SequenceClassifier(PretrainedModel):
    """A model that classifies texts or pairs of texts."""

    head: ClassVar[Head] = Head.SEQUENCE_CLASSIFICATION

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


class TokenClassifier(PretrainedModel):
    """A model that labels tokens, such as names of persons and places."""

    head: ClassVar[Head] = Head.TOKEN_CLASSIFICATION

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


class QuestionAnswerer(PretrainedModel):
    """A model that finds the answer to a question in a text."""

    head: ClassVar[Head] = Head.QUESTION_ANSWERING

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


class MaskedLM(PretrainedModel):
    """A model that predicts masked tokens."""

    head: ClassVar[Head] = Head.MASKED_LM

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


TASKS: dict[Head, type[PretrainedModel]] = {
    task.head: task for task in (Encoder, SequenceClassifier, TokenClassifier, QuestionAnswerer, MaskedLM)
}
