"""Calls with the wrong arguments raise errors of flodl that say what to write."""

from __future__ import annotations

from typing import Any

import pytest

from flodl import Monitor
from flodl.core import HFError, MonitorError
from flodl.hf import AutoModel, AutoModelForSequenceClassification, create_tiny, verify_export

TEXTS = ["a moving and funny film", "a dull story"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny model for each head."""
    root = tmp_path_factory.mktemp("models")
    return {
        head: create_tiny(root / head, TEXTS, head=head) for head in ("base", "seqcls", "tokcls", "qa", "mlm")
    }


@pytest.mark.parametrize(
    ("head", "call", "message"),
    [
        ("seqcls", lambda m: m.predict(TEXTS, topk=1), "no argument 'topk'. Did you mean 'top_k'?"),
        ("seqcls", lambda m: m.predict(TEXTS, batchsize=1), "Did you mean 'batch_size'?"),
        ("seqcls", lambda m: m.predict(TEXTS, truncation=True), "'truncation'. Leave it out: texts are cut"),
        ("seqcls", lambda m: m.predict(), "model.predict needs 'texts'. Write model.predict(texts)."),
        ("seqcls", lambda m: m.predict(TEXTS, None, 3), "takes only texts, pairs that way"),
        ("seqcls", lambda m: m.dataset(TEXTS, label=[0, 1]), "Did you mean 'labels'?"),
        ("seqcls", lambda m: m.dataset(TEXTS, [0, 1], group_by_lenght=1), "Did you mean 'group_by_length'?"),
        ("seqcls", lambda m: m.dataset(TEXTS, [0, 1], batch_size=2), "Pass it to trainer.fit"),
        ("seqcls", lambda m: m.dataset(TEXTS, [0, 1], tokens=2), "model.dataset has no argument 'tokens'"),
        ("seqcls", lambda m: m.dataset(), "model.dataset needs 'texts'"),
        ("seqcls", lambda m: m.export("x", overwrite=True), "Write force=True."),
        ("seqcls", lambda m: m.export(), "model.export needs 'folder'"),
        ("seqcls", lambda m: m.tokenizer(TEXTS, return_tensors="pt"), "tensors are returned"),
        ("tokcls", lambda m: m.predict(TEXTS, aggregation="none"), "Did you mean 'aggregation_strategy'?"),
        ("tokcls", lambda m: m.dataset([["a"]], labels=[["O"]]), "The arguments here are 'words', 'tags'"),
        ("qa", lambda m: m.predict("what"), "Write model.predict(question, context)."),
        ("qa", lambda m: m.predict(question="what", contexts="a"), "Did you mean 'context'?"),
        ("mlm", lambda m: m.dataset(TEXTS, [0, 1]), "takes only texts that way"),
        ("mlm", lambda m: m.dataset(TEXTS, mlm_probability=0.2), "mean 'mask_probability'?"),
        ("base", lambda m: m.embed(TEXTS, normalise=True), "Did you mean 'normalize'?"),
        ("base", lambda m: m.predict(TEXTS, show_progress_bar=True), "Write progress=True"),
    ],
)  # fmt: skip
def test_a_wrong_argument_of_a_model_is_explained(models, head, call, message) -> None:
    with pytest.raises(HFError) as caught:
        call(models[head])
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AutoModel.from_pretrained(), "from_pretrained needs 'repo_or_dir'"),
        (lambda: AutoModel.from_pretrained("x", torch_dtype="auto"), "'torch_dtype'. Write dtype="),
        (
            lambda: AutoModel.from_pretrained("x", trust_remote_code=True),
            "nothing in a checkpoint is executed",
        ),
        (
            lambda: AutoModelForSequenceClassification.from_pretrained("x", num_label=2),
            "from_pretrained has no argument 'num_label'. Did you mean 'num_labels'?",
        ),
        (lambda: AutoModel.from_config({}, lables=["a"]), "Did you mean 'labels'"),
        (lambda: create_tiny("x", TEXTS, num_labels=2), "create_tiny has no argument 'num_labels'"),
        (lambda: verify_export("x", transformers=True), "Did you mean 'use_transformers'?"),
    ],
)
def test_a_wrong_argument_of_a_function_is_explained(call, message) -> None:
    with pytest.raises(HFError) as caught:
        call()
    assert message in str(caught.value)


def test_options_are_passed_on(models) -> None:
    assert len(models["seqcls"].predict("a film", top_k=1)) == 1
    assert len(models["mlm"].predict("a [MASK]", top_k=3)) == 3
    assert models["base"].predict(["a film"], normalize=True, batch_size=1).norm() == pytest.approx(1)
    assert models["seqcls"].dataset(TEXTS, [0, 1], pack=True, group_by_length=False).pack is True


def test_a_type_error_from_inside_is_not_replaced(models) -> None:
    class Broken(str):
        def encode(self, *args):
            raise TypeError("broken")

    with pytest.raises(TypeError, match=r"^broken$"):
        models["seqcls"].predict([Broken("a")])


def test_metrics_without_an_epoch_are_explained() -> None:
    with Monitor(2, console=False) as monitor:
        with pytest.raises(MonitorError, match=r"log needs 'metrics'\. Write monitor\.log\(epoch, \{'loss'"):
            monitor.log({"loss": 0.5})
        with pytest.raises(MonitorError, match=r"log_step needs 'metrics'\. Write monitor\.log_step\(step"):
            monitor.log_step({"loss": 0.5})
        with pytest.raises(MonitorError, match="log has no argument 'loss'"):
            monitor.log(0, loss=0.5)
