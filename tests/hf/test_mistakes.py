"""Mistakes in loading, predicting, fine-tuning and exporting have messages that say what to write."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl import Loader, Trainer
from flodl.checkpoint import best
from flodl.core import FlodlError, HFError
from flodl.hf import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    compute_loss,
    create_tiny,
    label_names,
    outputs,
    verify_export,
)

TEXTS = ["a moving and funny film", "a dull story", "the acting is wonderful", "the plot is flat"] * 2
LABELS = ["positive", "negative"] * 4
IDS = torch.ones(1, 2, dtype=torch.int64)
ANSWER = {"text": ["film"], "answer_start": [9]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny model for each head."""
    root = tmp_path_factory.mktemp("models")
    labels = {"seqcls": ["negative", "positive"], "tokcls": ["O", "B-PER"]}
    return {
        head: create_tiny(root / head, TEXTS, head=head, labels=labels.get(head))
        for head in ("base", "seqcls", "tokcls", "qa", "mlm")
    }


def folder_of(model: Any) -> Path:
    return Path(model.source.root)


def fit(model: Any, data: Any, eval_data: Any = None, **options: Any) -> Any:
    trainer = Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        device="cpu",
        monitor=False,
        **options,
    )
    return trainer.fit(data, epochs=1, batch_size=4, eval_data=eval_data)


@pytest.mark.parametrize(
    ("head", "call", "message"),
    [
        ("seqcls", lambda m: m.predict(TEXTS, top_k="1"), "top_k is '1'; expected an integer"),
        ("qa", lambda m: m.predict("what", "a film", top_k=1.5), "top_k is 1.5; expected an integer"),
        ("mlm", lambda m: m.predict("a [MASK]", top_k=None), "top_k is None; expected an integer"),
        ("seqcls", lambda m: m.predict(TEXTS, max_length="64"), "max_length='64' is out of range"),
        ("seqcls", lambda m: m.dataset(TEXTS, LABELS, max_length=64.0), r"max_length=64\.0 is out of range"),
        ("seqcls", lambda m: m.predict([], function_to_apply="relu"), "function_to_apply is 'relu'"),
        ("seqcls", lambda m: m.predict(set(TEXTS)), "texts is a set; expected a string or a list"),
        ("seqcls", lambda m: m.dataset(TEXTS, LABELS, group_by_length="yes"), "group_by_length='yes'"),
        ("seqcls", lambda m: m.dataset(TEXTS, [-100] * 8), "all 8 labels are -100, which is ignored"),
        ("tokcls", lambda m: m.dataset([["a", "film"]], [[-100, -100]]), "all tags are -100"),
        ("tokcls", lambda m: m.predict("a film", is_split_into_words=True), "expected a list of words"),
        ("base", lambda m: m.embed("a", pooling="cls"), r"pooling='cls'; expected a Pooling"),
        ("base", lambda m: m.embed("a", normalize="l2"), "normalize='l2'; expected True or False"),
        ("base", lambda m: m.dataset(TEXTS, LABELS), "Load it with AutoModelForSequenceClassification"),
        ("base", lambda m: m.metrics(), "Load it with AutoModelForSequenceClassification"),
        ("seqcls", lambda m: m.export(None), "the folder to write is a NoneType"),
        ("seqcls", lambda m: m.export("x", dtype="fp16"), "dtype='fp16'; expected torch.float32"),
        ("seqcls", verify_export, "the folder is a SequenceClassifier. Pass the path of an export"),
        ("seqcls", AutoModel.from_pretrained, "the model is a SequenceClassifier. Pass a folder"),
        ("seqcls", lambda m: m(input_id=torch.ones(1, 2)), "without input_ids; got input_id"),
        ("seqcls", lambda m: compute_loss(m, ("a", "b"), ("x", "y")), "first part of a batch is a tuple"),
        ("seqcls", lambda m: m.compute_loss(torch.ones(1, 2), [0]), "compute_loss got a Tensor as inputs"),
        (
            "seqcls",
            lambda m: m.compute_loss({}, [0], label_smoothing=0.1),
            "no argument 'label_smoothing'. For another",
        ),
        ("seqcls", lambda m: m(torch.ones(1, 2)), "input_ids is float32; expected integers"),
        (
            "seqcls",
            lambda m: m(torch.tensor([[1, 6000]])),
            r"ids from 1 to 6000, but the vocabulary .* has \d+",
        ),
        ("seqcls", lambda m: m(IDS, token_type_ids=IDS + 8), "token_type_ids has ids from 9 to 9"),
    ],
)
def test_a_wrong_argument_of_a_model_is_named(models, head, call, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HFError, match=message):
        call(models[head])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "the label of text 0 is 0, and not a name. Class ids that count from 0 need no names"),
        ([5, 3, 1], r"as text: label_names\(\[str\(label\) for label in labels\]\)\.$"),
        (["a", None], "the label of text 1 is None, and not a name. Leave out texts without a label.$"),
        (["a", math.nan], "the label of text 1 is nan, and not a name. Leave out texts without a label.$"),
        ([["O"], ["O", 3]], r"the label of text 1 is \['O', 3\], and not a name"),
        ("abc", "labels is the text 'abc'; expected a list"),
        (None, "labels is None; expected a list"),
        (3, "labels is 3; expected a list"),
    ],
)
def test_labels_without_names_are_named(labels, message) -> None:
    with pytest.raises(HFError, match=message):
        label_names(labels)


def test_an_auto_class_says_how_it_is_used(models) -> None:
    with pytest.raises(HFError, match=r"Write AutoModel\.from_pretrained\(repo_or_dir\)"):
        AutoModel(folder_of(models["base"]))
    with pytest.raises(HFError, match="config is a list; expected the fields to override"):
        AutoModel.from_pretrained(folder_of(models["base"]), config=["hidden_size"])


def test_an_export_accepts_the_name_of_a_type(models, tmp_path) -> None:
    models["seqcls"].export(tmp_path / "half", dtype="float16")
    assert AutoModel.from_pretrained(tmp_path / "half").dtype == torch.float16


def test_something_else_than_a_tokenizer_is_refused(models) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder_of(models["seqcls"]))
    with pytest.raises(HFError, match=r"the tokenizer is a str; expected .*Tokenizer\.from_directory"):
        model.tokenizer = "bert-base-uncased"


def test_the_tokenizer_of_a_larger_model_is_noticed_before_the_model_runs(models, tmp_path) -> None:
    words = " ".join(f"w{index}" for index in range(500))
    model = AutoModelForSequenceClassification.from_pretrained(folder_of(models["seqcls"]))
    model.tokenizer = create_tiny(tmp_path / "large", [words], head="base").tokenizer
    with pytest.raises(HFError, match="The tokenizer does not belong to the model"):
        model.dataset([words], ["positive"])
    with pytest.raises(HFError, match="The tokenizer does not belong to the model"):
        model.predict(words)


def test_predictions_of_a_head_that_was_not_loaded_are_reported_once(models, capsys) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder_of(models["base"]))
    capsys.readouterr()
    model.predict("a film")
    assert "predictions are random until it is trained" in capsys.readouterr().err
    model.predict("a film")
    assert not capsys.readouterr().err


def test_predictions_of_a_head_that_was_trained_or_loaded_are_not_reported(models, capsys) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder_of(models["base"]))
    fit(model, model.dataset(TEXTS, [0, 1] * 4))
    restored = AutoModelForSequenceClassification.from_pretrained(folder_of(models["base"]))
    restored.load_state_dict(model.state_dict())
    capsys.readouterr()
    model.predict("a film")
    restored.predict("a film")
    models["seqcls"].predict("a film")
    AutoModel.from_pretrained(folder_of(models["mlm"])).embed("a film")
    assert not capsys.readouterr().err


def test_a_classifier_of_another_kind_of_model_is_reported(models, capsys) -> None:
    AutoModelForTokenClassification.from_pretrained(folder_of(models["seqcls"]))
    shown = capsys.readouterr().err
    assert "the checkpoint was saved as BertForSequenceClassification" in shown
    assert "meaningless until it is trained" in shown
    AutoModelForSequenceClassification.from_pretrained(folder_of(models["seqcls"]))
    AutoModelForTokenClassification.from_pretrained(folder_of(models["seqcls"]), num_labels=5)
    AutoModelForQuestionAnswering.from_pretrained(folder_of(models["seqcls"]))
    assert not capsys.readouterr().err


def test_empty_texts_are_reported_once(models, capsys) -> None:
    models["seqcls"].dataset(["a film", "", "  "], [0, 1, 0])
    assert capsys.readouterr().err.count("2 of 3 texts are empty, the first of them text 1") == 1
    models["seqcls"].dataset(["a film"], [0])
    assert not capsys.readouterr().err


def test_an_ignored_label_may_be_a_single_name(models) -> None:
    model = models["tokcls"]
    entities = model.predict("a moving film", aggregation_strategy="none", ignore_labels=())
    kept = model.predict("a moving film", aggregation_strategy="none", ignore_labels="B-PER")
    assert kept == [entity for entity in entities if entity.label != "B-PER"]


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4)], ids=["more questions", "fewer questions"])
def test_answers_to_the_questions_of_another_dataset_are_refused(models, sizes) -> None:
    model = models["qa"]
    first, second = (
        model.dataset([question] * size, ["a moving film"] * size, [ANSWER] * size)
        for question, size in zip(("what film is it", "what"), sizes)
    )
    with pytest.raises(HFError, match=r"metrics=model\.metrics\(valid\) and eval_data=valid"):
        fit(model, first, second, metrics=model.metrics(first), outputs=outputs)
    fit(model, second, first, metrics=model.metrics(first), outputs=outputs)


def test_answers_are_scored_with_padding_on_the_left(models, tmp_path) -> None:
    model = AutoModelForQuestionAnswering.from_pretrained(folder_of(models["qa"]))
    model.tokenizer.padding_side = "left"
    contexts = ["a moving film", "a moving film and the dull story of it"] * 2
    data = model.dataset(["what"] * 4, contexts, [ANSWER] * 4)
    result = fit(model, data, data, metrics=model.metrics(data), outputs=outputs)
    assert 0 <= result.metrics["eval_squad_f1"] <= 100


def test_choosing_weights_on_the_training_texts_is_reported(models, capsys, tmp_path) -> None:
    model = models["seqcls"]
    train, same = model.dataset(TEXTS, LABELS), model.dataset(TEXTS, LABELS)
    other = model.dataset(TEXTS[:4], LABELS[:4])
    metrics = {"metrics": model.metrics(), "outputs": outputs, "keep": best("eval_accuracy")}
    fit(model, train, same, checkpoint_dir=tmp_path / "a", **metrics)
    assert capsys.readouterr().err.count("the evaluation data is the training data") == 1
    fit(model, train, other, checkpoint_dir=tmp_path / "b", **metrics)
    fit(model, train, same)
    assert "training data" not in capsys.readouterr().err


def test_texts_that_were_not_tokenized_are_refused_by_the_step_function(models) -> None:
    with pytest.raises(FlodlError, match=r"Train on model\.dataset\(texts, labels\)"):
        fit(models["seqcls"], [*zip(TEXTS, LABELS)])


@pytest.mark.parametrize(
    "use", [lambda data: data[0], list, lambda data: torch.utils.data.Subset(data, [0])[0]]
)
def test_a_text_dataset_says_how_it_is_split_and_read(models, use) -> None:
    with pytest.raises(HFError, match="split the texts before"):
        use(models["seqcls"].dataset(TEXTS, LABELS))


@pytest.mark.parametrize("shape", [(1, 6), (2, 1), (2, 5)])
def test_an_attention_mask_of_another_shape_is_refused(models, shape) -> None:
    with pytest.raises(HFError, match="Pass one value for each token"):
        models["seqcls"](input_ids=torch.ones(2, 6).long(), attention_mask=torch.ones(shape).long())


@pytest.mark.parametrize("head", ["seqcls", "tokcls", "mlm"])
def test_the_tokens_of_one_text_need_a_row(models, head) -> None:
    with pytest.raises(HFError, match=r"expected \[texts, tokens\]"):
        models[head](input_ids=torch.ones(6).long())


def test_names_that_are_numbers_are_sorted_by_value() -> None:
    assert label_names([str(number) for number in range(12)]) == [str(number) for number in range(12)]


def test_a_tiny_model_is_not_created_over_another(models) -> None:
    with pytest.raises(HFError, match="load the model in it with from_pretrained"):
        create_tiny(folder_of(models["seqcls"]), TEXTS, head="seqcls", labels=["negative", "positive"])


@pytest.mark.parametrize("through_loader", [False, True])
def test_a_dataset_of_another_vocabulary_is_refused_even_if_its_ids_fit(models, tmp_path, through_loader):
    own, texts = models["seqcls"], [text.replace("film", "zebra") for text in TEXTS]
    other = create_tiny(tmp_path / "other", texts, head="seqcls", labels=["negative", "positive"])
    data = other.dataset(texts, LABELS)
    assert int(data.tokens.ids.max()) < own.config.sizes.vocab
    training, evaluation = data, None
    if through_loader:
        training, evaluation = own.dataset(TEXTS, LABELS), Loader(data, 4, shuffle=False)
    with pytest.raises(HFError, match=r"made with another model: its token \d+ is '.*', which is '.*' for"):
        fit(own, training, evaluation)


def test_a_dataset_made_with_the_labels_in_another_order_is_refused(models, tmp_path):
    other = create_tiny(tmp_path / "other", TEXTS, head="seqcls", labels=["positive", "negative"])
    with pytest.raises(HFError, match="labels are positive, negative; those of this model are negative"):
        fit(models["seqcls"], other.dataset(TEXTS, LABELS))


def test_a_dataset_made_with_another_model_of_the_same_vocabulary_is_accepted(models):
    own = models["seqcls"]
    other = AutoModelForSequenceClassification.from_pretrained(folder_of(own))
    assert fit(own, other.dataset(TEXTS, LABELS)).status == "finished"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("load_checkpoint", r"load_checkpoint\('model.fdl', model.state_dict\(\)\)"),
        ("save_pretrained", r"Write model.export\(folder\)"),
        ("freeze", r"model\.graph\.freeze\(…\)"),
        ("generate", "encoders"),
    ],
)
def test_a_method_of_another_library_says_what_to_write(models, name, advice) -> None:
    with pytest.raises(HFError, match=rf"a SequenceClassifier has no method '{name}'\. .*{advice}"):
        getattr(models["seqcls"], name)("folder")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("model.fdl", "load_state_dict got a str; expected a state_dict"),
        ({"model": {}, "optimizer": {}}, r"the parts model, optimizer: .*parts\['model'\]"),
        (
            {"bert.pooler.weight": torch.zeros(1)},
            "none of the 1 tensors in the state_dict has a name of this",
        ),
    ],
)
def test_the_state_of_something_else_is_refused_also_if_it_is_not_strict(
    models, state, message, strict
) -> None:
    with pytest.raises(HFError, match=message):
        models["seqcls"].load_state_dict(state, strict=strict)
