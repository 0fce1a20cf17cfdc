"""`AutoModel…`: load a model from the hub or a folder, or create one from a config."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, runtime_checkable

import torch

from flodl.core import HFError, log
from flodl.core.device import parse_device
from flodl.core.files import expand_user
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer
from flodl.core.paths import suggestion
from flodl.core.rng import default_seed

from .config import EncoderConfig
from .equal_names import check_equal_names
from .files.dtypes import parse_dtype
from .files.json_file import read_object
from .files.load import load_graph
from .files.names import CONFIG
from .files.source import open_source
from .files.weights import open_weights
from .heads import Head
from .models import PretrainedModel
from .registry import Family, family_of, head_of
from .tasks import Encoder, MaskedLM, QuestionAnswerer, SequenceClassifier, TokenClassifier
from .unread_fields import ReadFields, warn_about_unread
from .usage.calls import explained

_MAX_LABELS = 1_000_000  # each gets a name
Model = TypeVar("Model", bound=PretrainedModel)


@runtime_checkable
class TransformersConfig(Protocol):
    """A transformers config, which need not be installed."""

    def to_json_string(self, use_diff: bool = True) -> str:
        """Return the fields as JSON; with `use_diff=False`, all of them."""
        ...


class _Auto(Generic[Model]):
    """What the five classes share; `task` is the class of the models."""

    task: ClassVar[type[PretrainedModel]]

    def __init__(self, *args: Any, **options: Any) -> None:
        name = type(self).__name__
        raise HFError(
            f"{name} is not created directly. Write {name}.from_pretrained(repo_or_dir), or "
            f"{name}.from_config(config) for random weights."
        )

    @classmethod
    @explained("Write from_pretrained('google-bert/bert-base-uncased'), or pass a folder.")
    def from_pretrained(
        cls,
        repo_or_dir: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | int = "cpu",
        model_type: str | None = None,
        num_labels: int | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        config: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Model:
        """Load a model from a folder or the hub, in evaluation mode.

        A head that the checkpoint does not have is initialized with the seed; `load_report` says so. The
        parameters have the type of the checkpoint unless `dtype` is given. `num_labels` or `labels` (their
        names) ask for a head with these labels, `config` overrides fields of config.json, and `model_type`
        names the architecture if config.json does not.
        """
        source = open_source(
            repo_or_dir,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
        raw = read_object(source.folder / CONFIG)
        where = str(source.folder / CONFIG)
        changes = _changes(raw, config, num_labels, labels, problem_type)
        family, options = _read_config(raw, changes, model_type, cls.task.head, where)
        warn_about_unread(family, config or (), {**raw, **changes})
        if cls.task.head.has_labels:
            check_equal_names(options.labels, where, is_own="id2label" in (config or {}))
        kind, target = parse_dtype(dtype), _device(device)
        with open_weights(source.folder) as weights:
            loaded = load_graph(
                family,
                options,
                cls.task.head,
                weights,
                source=str(source),
                dtype=kind,
                device=target,
                seed=_seed(seed),
                may_resize_head=num_labels is not None or labels is not None,
                may_drop_layers=config is not None,
            )
        report = loaded.report
        if labels is not None and cls.task.head.has_labels and not loaded.new:
            notes = _renamed_labels(raw.get("id2label"), loaded.config.labels)
            report = replace(report, notes=(*report.notes, *notes))
        if report.missing or report.unexpected or report.notes:
            log.msg(f"hf: {report}")
        else:
            log.verbose(f"hf: {report}")
        model = cls.task(
            loaded.graph, family, loaded.config, source=source, stored=loaded.stored, load_report=report
        )
        model.watch_new_head(loaded.new)
        if cls.task.head.has_labels and not loaded.new:
            _warn_about_other_head(raw, cls.task.head)
        return cast(Model, model.eval())

    @classmethod
    @explained("Write from_config(config), with the fields of a config.json, its path or its folder.")
    def from_config(
        cls,
        config: Mapping[str, Any] | str | os.PathLike[str] | TransformersConfig,
        *,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | int = "cpu",
        model_type: str | None = None,
        num_labels: int | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        seed: int | None = None,
    ) -> Model:
        """Create a model with random weights from the fields of a config.json, its path or its folder.

        A transformers config, such as a `BertConfig`, is also accepted. Fields of a dict that are misspelled
        or belong to another architecture cause a warning.
        """
        where = "the config"
        if isinstance(config, Mapping):
            raw = dict(config)
        elif isinstance(config, TransformersConfig):
            raw = json.loads(config.to_json_string(use_diff=False))
        elif not isinstance(config, str | os.PathLike):
            raise HFError(
                f"config is {a_type(config)}; expected the fields of a config.json as a dict, its "
                "path, or a transformers config."
            )
        else:
            path = expand_user(config)
            path = path / CONFIG if path.is_dir() else path
            raw, where = read_object(path), str(path)
        changes = _changes(raw, None, num_labels, labels, problem_type)
        family, options = _read_config(raw, changes, model_type, cls.task.head, where)
        warn_about_unread(family, config if isinstance(config, Mapping) else (), raw)
        if cls.task.head.has_labels:
            check_equal_names(options.labels, where)
        kind, target = parse_dtype(dtype), _device(device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_seed(seed))
            graph = family.create(options, cls.task.head)
        return cast(Model, cls.task(graph.to(target, kind), family, options).eval())


class AutoModel(_Auto[Encoder]):
    """Load a model without its head: hidden states, and `embed(texts)`."""

    task = Encoder


class AutoModelForSequenceClassification(_Auto[SequenceClassifier]):
    """Load a model that classifies texts."""

    task = SequenceClassifier


class AutoModelForTokenClassification(_Auto[TokenClassifier]):
    """Load a model that labels tokens."""

    task = TokenClassifier


class AutoModelForQuestionAnswering(_Auto[QuestionAnswerer]):
    """Load a model that finds answers in texts."""

    task = QuestionAnswerer


class AutoModelForMaskedLM(_Auto[MaskedLM]):
    """Load a model that predicts masked tokens."""

    task = MaskedLM


AUTO: dict[Head, type[_Auto[Any]]] = {
    cls.task.head: cls
    for cls in (
        AutoModel,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoModelForQuestionAnswering,
        AutoModelForMaskedLM,
    )
}


def saved_head(repo_or_dir: str | os.PathLike[str], **options: Any) -> Head:
    """Return the head that a model was saved with; `options` are those of `open_source`."""
    source = open_source(repo_or_dir, with_weights=False, **options)
    return head_of(read_object(source.folder / CONFIG))


def _read_config(
    raw: Mapping[str, Any], changes: Mapping[str, Any], model_type: str | None, head: Head, where: str
) -> tuple[Family, EncoderConfig]:
    fields = ReadFields({**raw, **changes})
    count = fields.get("num_labels")
    if is_integer(count, at_least=_MAX_LABELS):
        raise HFError(f"{where}: num_labels is {count}; expected at most {_MAX_LABELS}.")
    try:
        family = family_of(fields, model_type)
        options = family.read_config(fields)
    except HFError as error:
        message = error.message.removeprefix("config.json: ")
        raise HFError(message if message.startswith("config.json") else f"{where}: {message}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Nobody has checked the file, and any field may have any type.
        raise HFError(f"{where} is not the config of a model: {error}. Download it again.") from error
    # Families may read these from a copy.
    general = (*raw, "id2label", "label2id", "num_labels", "problem_type")
    unused = [name for name in changes if name not in fields.names and name not in general]
    if unused:
        known = sorted({*fields.names, *raw})
        raise HFError(
            f"config has the field {unused[0]!r}, which {family.model_type} does not have. "
            f"{suggestion(unused[0], known, known_as='fields')}"
        )
    if head not in family.heads:
        heads = ", ".join(known.value for known in family.heads)
        raise HFError(f"{where}: {family.model_type} has no head {head.value!r}. It has {heads}.")
    return family, options


def _changes(
    raw: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    num_labels: int | None,
    labels: Sequence[str] | None,
    problem_type: str | None,
) -> dict[str, Any]:
    """Return the fields of the config that the arguments replace."""
    if config is not None and not isinstance(config, Mapping):
        raise HFError(
            f"config is {a_type(config)}; expected the fields to override, such as "
            "{'hidden_dropout_prob': 0.0}."
        )
    changes = dict(config or {})
    names = _label_names(num_labels, labels)
    if names is not None and (labels is not None or len(names) != len(raw.get("id2label") or ())):
        _check_same_order(raw.get("id2label"), names)
        changes["id2label"] = {str(index): name for index, name in enumerate(names)}
        changes["label2id"] = {name: index for index, name in enumerate(names)}
    if names is not None and "num_labels" in raw:
        changes["num_labels"] = len(names)
    if problem_type is not None:
        changes["problem_type"] = problem_type
    return changes


def _warn_about_other_head(raw: Mapping[str, Any], head: Head) -> None:
    """Warn if the classifier that was loaded comes from the other kind of model that has one."""
    name = str((raw.get("architectures") or [""])[0])
    if any(name.endswith(other.suffix) for other in Head if other.has_labels and other is not head):
        log.warn(
            f"hf: the checkpoint was saved as {name}, whose classifier has the same shape and was loaded: "
            "predictions are meaningless until it is trained for the new task"
        )


def _label_names(num_labels: int | None, labels: Sequence[str] | None) -> list[str] | None:
    num_labels = as_integer(num_labels)
    if num_labels is not None and not is_integer(num_labels, at_least=1):
        raise HFError(f"num_labels is {num_labels!r}; expected an integer of at least 1.")
    if labels is None:
        return None if num_labels is None else [f"LABEL_{index}" for index in range(num_labels)]
    if isinstance(labels, Set):
        raise HFError(
            "labels is a set, whose order differs between processes. Pass a list, such as "
            f"label_names(…) of flodl.hf or {sorted(map(str, labels))}."
        )
    names = list(labels) if isinstance(labels, Iterable) and getattr(labels, "shape", None) != () else []
    if isinstance(labels, str) or not names or not all(isinstance(name, str) for name in names):
        number = as_integer(labels)
        is_count = is_integer(number, at_least=1)
        advice = f" For {number} labels without names, pass num_labels={number}." if is_count else ""
        raise HFError(f"labels is {labels!r:.100}; expected names such as ['negative', 'positive'].{advice}")
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise HFError(
            f"labels has {len(names)} names, of which {len(set(names))} are distinct: {twice!r} occurs "
            "twice. Pass each name once; for the labels of a dataset, labels=label_names(labels)."
        )
    if num_labels not in (None, len(names)):
        raise HFError(f"num_labels is {num_labels}, but labels has {len(names)} names. Pass one of them.")
    return names


def _check_same_order(saved: Any, names: list[str]) -> None:
    """Raise for the labels of the checkpoint in another order: its head would predict wrong names."""
    own = _saved_names(saved)
    plain, plain_own = ([name.strip().casefold() for name in each] for each in (names, own))
    if len(own) == len(names) and {*plain} == {*plain_own} and plain != plain_own:
        raise HFError(
            f"labels is {names}, but the head of the checkpoint predicts {own}, in this order. Pass "
            "the names in the order of the checkpoint, or leave labels out."
        )


def _saved_names(saved: Any) -> list[str]:
    """Return the labels of a checkpoint in the order of its head."""
    if not isinstance(saved, Mapping):
        return []
    return [str(saved[key]) for key in sorted(saved, key=lambda key: (len(str(key)), str(key)))]


def _renamed_labels(saved: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """Return a note that labels have other names than in the checkpoint whose head was loaded."""
    pairs = [f"{old} → {new}" for old, new in zip(_saved_names(saved), labels) if old != new]
    shown = ", ".join(pairs[:4]) + (f", … {len(pairs) - 4} more" if len(pairs) > 4 else "")
    return (f"the labels of the head were renamed ({shown})",) if pairs else ()


def _device(value: torch.device | str | int) -> torch.device:
    return parse_device(
        value,
        error=HFError,
        advice="Use 'cpu', 'cuda' or 'cuda:0'.",
        advice_without_cuda="Use device='cpu', or install a build of torch with CUDA: fdl setup.",
    )


def _seed(seed: int | None) -> int:
    if seed is None:
        return default_seed()
    seed = as_integer(seed)
    if not is_integer(seed, at_least=0) or seed >= 2**63:
        raise HFError(f"seed={seed!r}; expected an integer of at least 0.")
    return int(seed)
