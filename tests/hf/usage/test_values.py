"""Arguments of the wrong type raise errors of flodl that show the value and what was expected."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch

from flodl.core import FlodlError
from flodl.hf import (
    AutoModel,
    AutoModelForSequenceClassification,
    Tokenizer,
    compute_loss,
    create_tiny,
    label_names,
    outputs,
)
from flodl.hf.metrics import SquadScore

TEXTS = ["a film", "a story"]
WRONG = [2, True, 1.5, b"x", [[1]], {"a": 1}, object(), lambda: 0, float("nan"), -1]
IDS = {"input_ids": torch.ones(2, 2, dtype=torch.int64)}
LABELS = torch.zeros(2, dtype=torch.int64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny model for each head."""
    root = tmp_path_factory.mktemp("models")
    return {
        head: create_tiny(root / head, TEXTS, head=head) for head in ("base", "seqcls", "tokcls", "qa", "mlm")
    }


CALLS = {
    "from_config labels": lambda m, v: AutoModelForSequenceClassification.from_config(
        m["base"].config.raw, labels=v
    ),
    "from_pretrained labels": lambda m, v: AutoModel.from_pretrained(m["base"].source.root, labels=v),
    "label_names": lambda m, v: label_names(v),
    "dataset texts": lambda m, v: m["seqcls"].dataset(v, [0, 1]),
    "dataset labels": lambda m, v: m["seqcls"].dataset(TEXTS, v),
    "dataset words": lambda m, v: m["tokcls"].dataset(v, [[0]]),
    "question max_length": lambda m, v: m["qa"].dataset(TEXTS, TEXTS, max_length=v),
    "question stride": lambda m, v: m["qa"].dataset(TEXTS, TEXTS, max_length=8, stride=v),
    "batch": lambda m, v: m["seqcls"].dataset(TEXTS, [0, 1]).batch(v if v not in (True, 1.5, -1) else "x"),
    "squad": lambda m, v: SquadScore(v),
    "mask": lambda m, v: m["seqcls"](**IDS, attention_mask=v),
    "token types": lambda m, v: m["seqcls"](**IDS, token_type_ids=v),
    "loss inputs": lambda m, v: compute_loss(m["seqcls"], v, LABELS),
    "loss labels": lambda m, v: compute_loss(m["seqcls"], IDS, v),
    "loss of tokens": lambda m, v: compute_loss(m["tokcls"], IDS, v),
    "loss of answers": lambda m, v: compute_loss(m["qa"], IDS, v),
    "loss of masks": lambda m, v: compute_loss(m["mlm"], IDS, v),
    "loss model": lambda m, v: compute_loss(v, IDS, LABELS),
    "outputs model": lambda m, v: outputs(v, IDS, LABELS),
    "outputs inputs": lambda m, v: outputs(m["seqcls"], v, LABELS),
    "create_tiny folder": lambda m, v: create_tiny(v, TEXTS),
    "create_tiny texts": lambda m, v: create_tiny("never", v),
    "tokenizer texts": lambda m, v: m["base"].tokenizer(v),
    "tokenizer pairs": lambda m, v: m["base"].tokenizer(TEXTS, v),
    "decode": lambda m, v: m["base"].tokenizer.decode(v),
    "pad": lambda m, v: m["base"].tokenizer.pad(v),
    "from_directory": lambda m, v: Tokenizer.from_directory(v),
    "from_files": lambda m, v: Tokenizer.from_files(v),
    "truncation": lambda m, v: m["base"].tokenizer.encode(TEXTS, truncation=v),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_argument_of_the_wrong_type_raises_an_error_of_flodl(models: dict[str, Any], call: Any) -> None:
    for value in WRONG:
        with suppress(FlodlError):  # some of the values are valid in some places
            call(models, value)


def test_a_number_of_labels_raises_with_the_right_argument(models: dict[str, Any]) -> None:
    with pytest.raises(FlodlError, match=r"labels is 2; expected names .* pass num_labels=2\."):
        AutoModelForSequenceClassification.from_config(models["base"].config.raw, labels=2)


def test_labels_can_be_any_list_of_names(models: dict[str, Any]) -> None:
    for labels in (("a", "b"), iter(["a", "b"])):
        model = AutoModelForSequenceClassification.from_config(models["base"].config.raw, labels=labels)
        assert model.config.labels == ("a", "b")


@pytest.mark.parametrize(("function", "name"), [(compute_loss, "compute_loss"), (outputs, "outputs")])
def test_a_model_of_another_library_raises_with_how_to_load_it(function: Any, name: str) -> None:
    kind = type("BertForTokenClassification", (torch.nn.Module,), {"__module__": "transformers.models.bert"})
    model = kind()
    model.config = type("Config", (), {"name_or_path": "tiny"})()
    expected = (
        rf"{name} of flodl.hf got a BertForTokenClassification of transformers; .* Load it with "
        r"flodl.hf.AutoModelForTokenClassification.from_pretrained\('tiny'\)"
    )
    with pytest.raises(FlodlError, match=expected):
        function(model, IDS, LABELS)
