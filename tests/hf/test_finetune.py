"""Fine-tuning with the Trainer: every head, metrics, resuming, best weights, padded and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flodl.checkpoint import best, best_bundle, last, read_bundle
from flodl.core import HFError, TrainError
from flodl.hf import AutoModelForSequenceClassification, compute_loss, create_tiny, outputs, verify_export
from flodl.hf.metrics import Accuracy
from flodl.monitor import read

from .finetuning import HEADS, NO_DROPOUT, Recorder, examples, finetune, trainer_for
from .tiny_models import TEXTS, tiny

VALUES = {
    "seqcls": ["accuracy"],
    "tokcls": ["entity_precision", "entity_recall", "entity_f1", "token_accuracy"],
    "qa": ["squad_exact_match", "squad_f1"],
    "mlm": ["accuracy"],
}


@pytest.mark.parametrize("head", HEADS)
def test_one_step_function_trains_every_head(tmp_path: Path, head: str) -> None:
    result, _ = finetune(head, tmp_path, epochs=3, ema=0.5, config=NO_DROPOUT)
    first, last_row = result.history[0], result.history[-1]
    assert last_row["eval_loss"] < first["loss"]
    expected = {f"eval_{prefix}{name}" for name in ["loss", *VALUES[head]] for prefix in ("", "ema_")}
    assert expected <= last_row.keys()


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path: Path, head: str) -> None:
    whole = Recorder()
    expected, model = finetune(head, tmp_path / "a", whole, ema=0.9)
    folder = tmp_path / "run"
    stopped = Recorder(stop_after=6)
    finetune(head, tmp_path / "b", stopped, ema=0.9, checkpoint_dir=folder, save_every_steps=6)
    resumed = Recorder()
    found, again = finetune(head, tmp_path / "c", resumed, ema=0.9, checkpoint_dir=folder)
    assert stopped.losses + resumed.losses == whole.losses
    assert found.history == expected.history
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_the_best_weights_can_be_loaded_and_exported(tmp_path: Path) -> None:
    result, model = finetune(
        "seqcls", tmp_path, epochs=3, checkpoint_dir=tmp_path / "run", keep=last(1) | best("eval_accuracy")
    )
    bundle = best_bundle(tmp_path / "run", "eval_accuracy")
    assert bundle.metrics["eval_accuracy"] == result.best("eval_accuracy")["eval_accuracy"]
    model.load_state_dict(read_bundle(bundle)["model"])
    dataset = model.dataset(*examples("seqcls"))
    again = trainer_for(model, dataset).evaluate(dataset)
    assert again["accuracy"] == bundle.metrics["eval_accuracy"]
    model.export(tmp_path / "export")
    assert verify_export(tmp_path / "export", use_transformers=False).checks
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    assert loaded.predict(TEXTS) == model.eval().predict(TEXTS)


def test_an_evaluation_uses_the_forward_pass_of_the_loss_again(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    inputs, labels = model.dataset(*examples("seqcls")).batch([0, 1, 2])
    calls = []
    model.graph.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        compute_loss(model, inputs, labels)
        logits, same = outputs(model, inputs, labels)
        assert len(calls) == 1
        assert torch.equal(logits, model(**inputs))
        assert same is labels
        # A different batch is computed.
        outputs(model, dict(inputs), labels)
    assert len(calls) == 3


def test_left_padding_gives_the_same_answers(tmp_path: Path) -> None:
    model = tiny("qa", tmp_path)
    scores = []
    for side in ("right", "left"):
        model.tokenizer.padding_side = side
        dataset = model.dataset(*examples("qa"), max_length=64)
        metric = model.metrics(dataset)["squad"]
        inputs, labels = dataset.batch(range(8))
        metric.update(*outputs(model, inputs, labels))
        metric.compute()
        scores.append(metric.predictions)
    # BERT counts positions from the left of the row, so its logits depend on the side; their places do not.
    assert len(scores[0]) == len(scores[1]) == 8


def test_regressions_have_no_metric_but_their_loss(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path, num_labels=1)
    dataset = model.dataset(TEXTS, [float(len(text)) / 50 for text in TEXTS])
    trainer = trainer_for(model, dataset)
    trainer.fit(dataset, batch_size=4, epochs=1, eval_data=dataset)
    assert set(trainer.history[0]) == {"epoch", "loss", "lr", "eval_loss"}


def test_several_labels_per_text_are_measured_by_f1(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path, labels=["a", "b"], problem_type="multi_label_classification")
    dataset = model.dataset(TEXTS, [["a"], ["a", "b"]] * 4)
    trainer = trainer_for(model, dataset)
    trainer.fit(dataset, batch_size=4, epochs=1, eval_data=dataset)
    assert 0 <= trainer.history[0]["eval_f1"] <= 1


def test_a_batch_without_labels_is_a_clear_error(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    with pytest.raises(HFError, match="the batch has no labels"):
        trainer_for(model, None).fit(model.dataset(TEXTS), batch_size=4, epochs=1)
    with pytest.raises(HFError, match="needs the evaluation dataset"):
        tiny("qa", tmp_path / "qa").metrics()


def test_metrics_may_be_chosen(tmp_path: Path) -> None:
    model = tiny("tokcls", tmp_path)
    dataset = model.dataset(*examples("tokcls"))
    trainer = trainer_for(model, dataset)
    assert isinstance(model.metrics()["token_accuracy"], Accuracy)
    assert set(trainer.evaluate(dataset, batch_size=8)) == {"loss", *VALUES["tokcls"]}


def test_outputs_after_more_training_are_those_of_the_new_weights(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    encoded = model.tokenizer.pad(model.tokenizer.encode(TEXTS[:4]))
    labels = torch.tensor([0, 1, 0, 1])
    with torch.no_grad():
        model.eval().compute_loss(encoded, labels)
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    model.eval()
    found, _ = model.outputs(encoded, labels)
    assert torch.equal(found, model(**encoded))


@pytest.mark.parametrize("change", ["labels", "names", "texts"])
def test_the_content_of_a_dataset_includes_its_labels_and_their_names(tmp_path: Path, change: str) -> None:
    texts, labels = ["a moving film", "a dull story"] * 3, ["positive", "negative"] * 3
    names = ["negative", "positive"]
    model = create_tiny(tmp_path / "one", texts, head="seqcls", labels=names)
    same = model.dataset(texts, labels).content
    assert model.dataset(texts, labels).content == same
    if change == "names":
        model = create_tiny(tmp_path / "two", texts, head="seqcls", labels=names[::-1])
    changed = texts[::-1] if change == "texts" else texts
    other = model.dataset(changed, labels[::-1] if change == "labels" else labels)
    assert other.content != same


@pytest.mark.parametrize("change", ["labels", "texts", "nothing"])
def test_changed_evaluation_texts_are_reported_on_resume(tmp_path: Path, change: str) -> None:
    model = tiny("seqcls", tmp_path / "model")
    texts, labels = examples("seqcls")

    def fit(valid: Any, epochs: int) -> str:
        trainer = trainer_for(model, valid, checkpoint_dir=tmp_path / "run", monitor=None)
        trainer.fit(model.dataset(texts, labels), batch_size=9, epochs=epochs, eval_data=valid)
        return _alerts(tmp_path / "run")

    fit(model.dataset(texts[:8], labels[:8]), 1)
    texts_now = [text + " again" for text in texts[:8]] if change == "texts" else texts[:8]
    labels_now = [1 - label for label in labels[:8]] if change == "labels" else labels[:8]
    reported = fit(model.dataset(texts_now, labels_now), 2)
    assert "resumed after 2 updates, 1 epoch done" in reported
    assert ("eval_data.content is now" in reported) == (change != "nothing")


def test_changed_masking_is_reported_on_resume(tmp_path: Path) -> None:
    model = tiny("mlm", tmp_path / "model")
    for epochs, probability in enumerate((0.15, 0.3), 1):
        data = model.dataset(*examples("mlm"), mask_probability=probability)
        trainer = trainer_for(model, data, checkpoint_dir=tmp_path / "run", monitor=None)
        trainer.fit(data, batch_size=9, epochs=epochs, eval_data=data)
    reported = _alerts(tmp_path / "run")
    for name in ("data", "eval_data"):
        assert f"; {name}.transform is now 'Masking(probability=0.3, " in reported


def _alerts(folder: Path) -> str:
    return "\n".join(entry.event.data["message"] for entry in read(folder) if entry.event.kind == "alert")


@pytest.mark.parametrize("head", HEADS)
def test_metrics_without_outputs_are_refused_before_the_training(tmp_path: Path, head: str) -> None:
    model = tiny(head, tmp_path)
    dataset = model.dataset(*examples(head))
    with pytest.raises(TrainError, match=r"Pass outputs=flodl\.hf\.outputs with metrics"):
        trainer_for(model, dataset, outputs=None)


def test_metrics_with_an_own_step_function_and_without_outputs_are_refused_before_the_training(
    tmp_path: Path,
) -> None:
    model, steps = tiny("seqcls", tmp_path), Recorder()
    dataset = model.dataset(*examples("seqcls"))
    trainer = trainer_for(
        model, dataset, steps, outputs=None, step_fn=lambda model, x, y: model.compute_loss(x, y)
    )
    with pytest.raises(TrainError, match=r"first part of the batch(.|\n)*outputs=flodl\.hf\.outputs"):
        trainer.fit(dataset, epochs=1, batch_size=4, eval_data=dataset)
    assert not steps.losses


def test_a_model_that_is_called_with_a_dict_or_text_says_how_to_call_it(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    with pytest.raises(HFError, match=r"input_ids is a dict\. Pass its items by name: model\(\*\*inputs\)"):
        model(model.tokenizer(TEXTS))
    with pytest.raises(HFError, match=r"input_ids is a list.*model\.predict\(texts\)"):
        model(TEXTS)
