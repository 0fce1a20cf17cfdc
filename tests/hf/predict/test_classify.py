import numpy as np
import pytest
import torch

from flodl.core import HFError
from flodl.hf.predict import Runner, classify_texts
from flodl.hf.predict.classify import classification

from .pipelines import tiny

TEXTS = ["The film is moving .", "the lazy dog", "", "unbelievable players in Paris , walking !", "a boy"] * 3
PROBLEMS = [(3, None), (3, "multi_label_classification"), (1, None), (1, "regression"), (2, "regression")]


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize(("labels", "problem"), PROBLEMS)
def test_labels_and_scores_equal_those_of_the_pipeline(model_type, labels, problem, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, tokenizer, runner = tiny(
        model_type, "SequenceClassification", tmp_path, num_labels=labels, problem_type=problem
    )
    pipeline = transformers.TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    names = [f"LABEL_{index}" for index in range(labels)]
    found = classify_texts(runner, TEXTS, labels=names, problem_type=problem)
    for text, result in zip(TEXTS, found):
        expected = {item["label"]: item["score"] for item in pipeline(text, top_k=None)}
        assert result.to_dict() == pytest.approx(expected, abs=1e-5)
        if problem != "regression":
            scores = [item.score for item in result]
            assert scores == sorted(scores, reverse=True)
            assert result.label == max(expected, key=expected.get)


def test_pairs_equal_those_of_the_pipeline(tmp_path):
    transformers = pytest.importorskip("transformers")
    model, tokenizer, runner = tiny("bert", "SequenceClassification", tmp_path, num_labels=3)
    pipeline = transformers.TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    names = ["LABEL_0", "LABEL_1", "LABEL_2"]
    expected = pipeline({"text": TEXTS[0], "text_pair": TEXTS[1]}, top_k=None)
    found = classify_texts(runner, TEXTS[0], TEXTS[1], labels=names)
    assert found.to_dict() == pytest.approx({item["label"]: item["score"] for item in expected}, abs=1e-6)
    assert classify_texts(runner, [(TEXTS[0], TEXTS[1])], labels=names)[0] == found


def constant(tmp_path, logits):
    _, _, runner = tiny("bert", "SequenceClassification", tmp_path)
    return Runner(lambda **inputs: torch.tensor(logits).repeat(len(inputs["input_ids"]), 1), runner.tokenizer)


def test_one_text_gives_one_result_and_a_list_a_list(tmp_path):
    runner = constant(tmp_path, [[0.0, 2.0]])
    one = classify_texts(runner, "film", labels=["no", "yes"])
    assert (one.label, one["label"], one[0].label, one.above()) == ("yes", "yes", "yes", ["yes"])
    assert classify_texts(runner, ["film"], labels=["no", "yes"]) == [one]
    assert classify_texts(runner, [], labels=["no", "yes"]) == []
    assert len(classify_texts(runner, "film", labels=["no", "yes"], top_k=1)) == 1
    label, score = one[1]
    assert (label, round(score, 4)) == ("no", 0.1192)


def test_results_are_in_the_order_of_the_texts(tmp_path):
    _, _, runner = tiny("bert", "SequenceClassification", tmp_path)
    lengths = Runner(
        lambda **inputs: inputs["attention_mask"].sum(1, keepdim=True).float(), runner.tokenizer, batch_size=3
    )
    texts = ["film " * count for count in (5, 1, 9, 3, 7, 2, 0)]
    found = classify_texts(lengths, texts, labels=["length"], problem_type="regression")
    assert [result.score for result in found] == [7, 3, 11, 5, 9, 4, 2]


def test_a_batch_without_padding_needs_no_mask(tmp_path):
    _, _, runner = tiny("bert", "SequenceClassification", tmp_path)
    masked = []

    def forward(input_ids, attention_mask=None, **others):
        masked.append(attention_mask is not None)
        return input_ids[:, :1].float()

    plain = Runner(forward, runner.tokenizer, batch_size=2, mask_is_optional=True)
    classify_texts(plain, ["film film", "film film", "film", "a film is a film"], labels=["first"])
    assert masked == [True, True]
    classify_texts(plain, ["film film", "film film", "film", "film"], labels=["first"])
    assert masked[2:] == [False, False]


def test_a_text_that_is_too_long_is_reported_once(tmp_path, capfd):
    runner = constant(tmp_path, [[0.0, 2.0]])
    classify_texts(runner, ["film " * 100, "film", "film " * 90], labels=["no", "yes"])
    assert capfd.readouterr().err.count("2 of 3 texts are longer than 64 tokens; the rest is ignored") == 1


def test_scores_are_finite_for_extreme_logits():
    for function in ("softmax", "sigmoid"):
        result = classification(np.array([-1e4, 1e4], np.float32), ["a", "b"], function=function)
        assert result.score == 1.0
        assert np.isfinite([item.score for item in result]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ["one"]}, "the model returns 2 logits for 1 labels"),
        ({"labels": ["a", "b"], "top_k": 0}, "top_k is 0"),
        ({"labels": ["a", "b"], "function_to_apply": "max"}, "function_to_apply is 'max'"),
    ],
)
def test_a_wrong_argument_raises(arguments, message, tmp_path):
    with pytest.raises(HFError, match=message):
        classify_texts(constant(tmp_path, [[0.0, 2.0]]), ["film"], **arguments)


@pytest.mark.parametrize("texts", [None, 3, b"film", {"text": "film"}])
def test_what_is_not_a_list_of_texts_raises(texts, tmp_path):
    with pytest.raises(HFError, match="expected a string or a list of strings"):
        classify_texts(constant(tmp_path, [[0.0, 2.0]]), texts, labels=["a", "b"])
