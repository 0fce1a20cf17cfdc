"""`PretrainedModel` and its kinds: a graph with its config, tokenizer, predictions, loss and export."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from flodl.checkpoint import check_labels, labels_in, name_labels
from flodl.core import HFError, log
from flodl.core.formats import a_type
from flodl.graph import Graph

from .config import EncoderConfig
from .files.export import Exported, ExportReport, export_model
from .files.load import Stored
from .files.report import LoadReport
from .files.source import Source
from .files.tensors_file import MAX_SHARD_BYTES
from .heads import Head
from .registry import Family
from .usage.calls import HFCallError, explained
from .usage.names import check_state, explain_missing
from .usage.token_ids import not_integers, outside_tables
from .usage.values import check_inputs, check_labels_of_batch

if TYPE_CHECKING:
    from .predict import Runner
    from .text import Tokenizer


# Inputs that tokenizers make for all models, and some families do not use.
_OPTIONAL = ("token_type_ids", "position_ids")
_TENSORS = ("attention_mask", "token_type_ids", "position_ids", "cu_seqlens", "positions")


def _not_a_tensor(value: Any, others: Mapping[str, Any]) -> HFError:
    if value is None:
        got = f"; got {', '.join(others)}" if others else ""
        return HFError(f"the model is called without input_ids{got}. Write model(**model.tokenizer(texts)).")
    if isinstance(value, Mapping):
        return HFError(f"input_ids is {a_type(value)}. Pass its items by name: model(**inputs).")
    return HFError(
        f"input_ids is {a_type(value)}; expected a tensor. For raw text, use model.predict(texts) "
        "or model(**model.tokenizer(texts))."
    )


@explain_missing
class PretrainedModel(nn.Module):
    """A model of the Hugging Face ecosystem as a graph; `AutoModel…` creates it.

    Call it with tensors by name (`input_ids`, `attention_mask`, …). `graph` is the model itself, to freeze,
    draw and profile. `load_report` says what happened to each tensor of the checkpoint.
    """

    head: ClassVar[Head] = Head.BASE

    def __init__(
        self,
        graph: Graph,
        family: Family,
        config: EncoderConfig,
        *,
        source: Source | None = None,
        stored: Stored | None = None,
        load_report: LoadReport | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.family = family
        self.config = config
        self.source = source
        self.stored = stored or Stored()
        self.load_report = load_report
        self._tokenizer: Tokenizer | None = None
        # Whether the labels of a dataset have set the problem type.
        self.has_problem_of_labels = False
        # The last batch of an evaluation, and what the model returned for it.
        self._evaluated: tuple[Any, Any] | None = None
        # Parameters of a head that the checkpoint did not have, with their versions when they were created.
        self._new_head: list[tuple[Tensor, int]] = []

    @property
    def config(self) -> EncoderConfig:
        """The options of the model; checkpoints of the model contain the names of its labels."""
        return self._config

    @config.setter
    def config(self, config: EncoderConfig) -> None:
        self._config = config
        if self.head.has_labels:
            name_labels(self.graph.get_submodule("classifier"), config.labels)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint, loaded on first use; assign another one to replace it."""
        if self._tokenizer is None:
            if self.source is None:
                raise HFError(
                    "the model has no tokenizer, because it was created from a config. Set model.tokenizer, "
                    "for example to Tokenizer.from_directory(folder) of flodl.hf."
                )
            files = {path.name: path for path in self.source.tokenizer_files()}
            if not files:
                raise HFError(
                    f"{self.source.folder} has no tokenizer files, such as tokenizer.json or vocab.txt. Add "
                    "them, or set model.tokenizer."
                )
            from .text import Tokenizer

            self._tokenizer = Tokenizer.from_files(files, config=self.config.raw)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        from .text import Tokenizer

        if not isinstance(tokenizer, Tokenizer):
            raise HFError(
                f"the tokenizer is {a_type(tokenizer)}; expected a Tokenizer of flodl.hf, such as "
                "Tokenizer.from_directory(folder)."
            )
        self._tokenizer = tokenizer

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return next(self.parameters()).dtype

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        """Return logits, `(start_logits, end_logits)` for questions, or hidden states without a head."""
        if not isinstance(input_ids, Tensor):
            raise _not_a_tensor(input_ids, inputs)
        if input_ids.dim() != 2:
            raise HFError(
                f"input_ids has shape {tuple(input_ids.shape)}; expected [texts, tokens]. For one text, "
                "write input_ids[None]."
            )
        if input_ids.is_floating_point():
            raise not_integers(input_ids)
        given = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            **inputs,
        }
        for name, value in given.items():
            if name in _TENSORS and value is not None and not isinstance(value, Tensor):
                raise HFError(f"{name} is {a_type(value)}; expected a tensor. Pass model.tokenizer(texts).")
        try:
            return self.graph(input_ids, **self._inputs(given))
        except IndexError as error:
            if clearer := outside_tables({"input_ids": input_ids, **given}, self.config):
                raise clearer from error
            raise

    @explained("Write model.export(folder).", name="model.export")
    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        force: bool = False,
        dtype: torch.dtype | str | None = None,
        max_shard_bytes: int = MAX_SHARD_BYTES,
    ) -> ExportReport:
        """Write a folder that transformers and `from_pretrained` load; it must be new or empty.

        With `force`, a model in the folder is replaced. Without `dtype`, the types of the source are kept.
        """
        model = Exported(
            self.graph,
            self.family,
            self.config,
            self.head,
            self.stored,
            self.source,
            self._tokenizer_files(),
        )
        return export_model(model, folder, force=force, dtype=dtype, max_shard_bytes=max_shard_bytes)

    def predict(self, *args: Any, **options: Any) -> Any:
        """Predict on raw text; what it returns depends on the head."""
        raise NotImplementedError

    def compute_loss(
        self, inputs: Mapping[str, Any], labels: Any, *, weight: Tensor | None = None, **others: Any
    ) -> Tensor:
        """Return the loss of a batch: cross-entropy, or what the problem type asks for.

        Tokens with the label -100 do not count. The labels of question answering are `(starts, ends)`,
        counted from the first token of each text, in a packed batch too. `weight` has a value for each class
        of texts or tokens. Other arguments raise.
        """
        from .losses import compute_loss

        if others:
            raise HFCallError(
                f"compute_loss has no argument {next(iter(others))!r}. For another loss, such as one "
                "with label smoothing, write a step function: cross_entropy(model(**inputs), labels, …)."
            )
        if not isinstance(inputs, Mapping):
            raise HFCallError(
                f"compute_loss got {a_type(inputs)} as inputs; expected the inputs of the model by name. "
                "Call compute_loss({'input_ids': input_ids}, labels)."
            )
        check_labels_of_batch(labels)
        if self.training or torch.is_grad_enabled():
            return compute_loss(self, inputs, labels, head=self.head, config=self.config, weight=weight)

        def forward(**inputs_: Any) -> Any:
            output = self(**inputs_)
            self._evaluated = inputs, output
            return output

        return compute_loss(forward, inputs, labels, head=self.head, config=self.config, weight=weight)

    def outputs(self, inputs: Mapping[str, Any], labels: Any) -> tuple[Any, Any]:
        """Return the predictions of a batch and its labels, for metrics; `Trainer(outputs=…)` takes it.

        An evaluation computes the loss of the batch first; its forward pass is used again.
        """
        from .prediction_rows import masked_inputs, output_rows

        check_inputs(inputs, "outputs")
        if self.head is Head.MASKED_LM:
            check_labels_of_batch(labels)
        evaluated, self._evaluated = self._evaluated, None
        known = evaluated[1] if evaluated is not None and evaluated[0] is inputs else None
        if self.head is Head.MASKED_LM:
            inputs, labels = masked_inputs(inputs, labels)
            return (self(**inputs) if known is None else known), labels
        found = self(**inputs) if known is None else known
        side = self.tokenizer.padding_side if self.head is Head.QUESTION_ANSWERING else "right"
        return output_rows(self.head, inputs, found, labels, padding_side=side)

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode; what an evaluation computed is not used after it."""
        self._evaluated = None
        return super().train(mode)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a `state_dict` as torch does; raise if it is that of something else."""
        own = self.state_dict()
        check_state(state_dict, own)
        check_labels(
            labels_in(own), labels_in(state_dict), {name: name for name in state_dict}, "the state_dict"
        )
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def watch_new_head(self, names: Iterable[str]) -> None:
        """Warn before the first prediction if these parameters of the graph are still as they are now."""
        if self.head is not Head.BASE:  # embeddings do not use the pooler
            known = dict(self.graph.named_parameters())
            self._new_head = [(known[name], known[name]._version) for name in names if name in known]

    def _warn_about_new_head(self) -> None:
        watched, self._new_head = self._new_head, []
        if watched and all(parameter._version == version for parameter, version in watched):
            log.warn(
                "hf: the checkpoint did not have the head of this model, which was initialized: predictions "
                "are random until it is trained"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.family.class_name(self.head)}, {sum(p.numel() for p in self.parameters()):,} parameters"
        )

    def _inputs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the graph; token types are dropped in families that have none."""
        known = self.graph.accepted_refs().names
        for name, value in given.items():
            if value is not None and name not in known and name not in _OPTIONAL:
                raise HFError(
                    f"{self.family.class_name(self.head)} has no input {name!r}. Its inputs are input_ids, "
                    f"{', '.join(known)}."
                )
        return {name: given.get(name) for name in known}

    def _tokenizer_files(self) -> list[Path]:
        if self._tokenizer is not None:
            return list(self._tokenizer.files.values())
        return self.source.tokenizer_files() if self.source is not None else []

    @contextmanager
    def running(self, **options: Any) -> Iterator[Runner]:
        """Yield what runs the model on texts, in evaluation mode."""
        from .predict import Runner

        self._warn_about_new_head()
        # Parts may be in different modes, for example a frozen encoder.
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield Runner(
                self,
                self.tokenizer,
                device=self.device,
                mask_is_optional=True,
                vocab_size=self.config.sizes.vocab,
                **options,
            )
        finally:
            for module in training:
                module.training = True
