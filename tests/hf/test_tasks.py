"""Every head on raw text, from a saved folder, against the pipelines of transformers."""

import os

import pytest
import torch

from flodl import hf

from .predict.pipelines import tiny

os.environ["HF_HUB_OFFLINE"] = "1"

TEXTS = [
    "The film is moving .",
    "John Smith lives in New York",
    "a",
    "unbelievable players in Paris , walking !",
]


def saved(model_type, suffix, folder, **options):
    """Save a tiny model; return its path, and the model and tokenizer of transformers."""
    model, tokenizer, _ = tiny(model_type, suffix, folder, **options)
    path = folder / "json"
    model.save_pretrained(path)
    return path, model, tokenizer


def close(found, expected):
    assert [item["score"] for item in found] == pytest.approx([item["score"] for item in expected], abs=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_a_classifier_predicts_as_the_pipeline(model_type, tmp_path):
    path, model, tokenizer = saved(model_type, "SequenceClassification", tmp_path, num_labels=3)
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = hf.AutoModelForSequenceClassification.from_pretrained(path)
    for found, expected in zip(ours.predict(TEXTS), pipeline(TEXTS, top_k=None)):
        assert [item.label for item in found] == [item["label"] for item in expected]
        close(found, expected)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_a_tagger_predicts_as_the_pipeline(model_type, tmp_path):
    labels = {0: "O", 1: "B-PER", 2: "I-PER"}
    path, model, tokenizer = saved(model_type, "TokenClassification", tmp_path, id2label=labels)
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.TokenClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    ours = hf.AutoModelForTokenClassification.from_pretrained(path).predict(TEXTS)
    for found, expected in zip(ours, pipeline(TEXTS, aggregation_strategy="simple")):
        assert [(item.start, item.end) for item in found] == [
            (item["start"], item["end"]) for item in expected
        ]
        close(found, expected)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_a_masked_lm_predicts_as_the_pipeline(model_type, tmp_path):
    vocabulary = {"bert": 128, "roberta": 400}[model_type]
    path, model, tokenizer = saved(model_type, "MaskedLM", tmp_path, vocab_size=vocabulary)
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.FillMaskPipeline(model=model, tokenizer=tokenizer, device="cpu")
    texts = [f"the {tokenizer.mask_token} is", f"a film about {tokenizer.mask_token} and a lazy dog"]
    ours = hf.AutoModelForMaskedLM.from_pretrained(path)
    for found, expected in zip(ours.predict(texts), pipeline(texts)):
        assert [item.token for item in found] == [item["token"] for item in expected]
        close(found, expected)


def test_an_answerer_finds_a_span_of_the_context(tmp_path):
    path, _, _ = saved("bert", "QuestionAnswering", tmp_path)
    context = "John Smith lives in New York City , where Angela Merkel met Barack Obama . " * 5
    found = hf.AutoModelForQuestionAnswering.from_pretrained(path).predict("who ?", context, top_k=3)
    assert len(found) == 3
    assert all(item.answer == context[item.start : item.end] for item in found)


def test_predicting_keeps_the_mode_of_every_part(tmp_path):
    path, _, _ = saved("bert", "SequenceClassification", tmp_path)
    model = hf.AutoModelForSequenceClassification.from_pretrained(path).train()
    frozen = next(module for module in model.modules() if isinstance(module, torch.nn.LayerNorm))
    frozen.eval()
    before = [module.training for module in model.modules()]
    model.predict("the film")
    assert [module.training for module in model.modules()] == before
    assert not frozen.training


def test_embeddings_are_the_mean_of_the_last_hidden_states(tmp_path):
    path, model, tokenizer = saved("bert", "", tmp_path)
    found = hf.AutoModel.from_pretrained(path).embed(TEXTS)
    for text, vector in zip(TEXTS, found):
        with torch.inference_mode():
            expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, expected, atol=1e-4, rtol=1e-4)
