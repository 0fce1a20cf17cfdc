import warnings

import pytest

from flodl.core import HFError
from flodl.hf.predict import tag_texts

from .pipelines import data, tiny

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
TEXTS = [
    "John Smith lives in New York City , where Angela Merkel met Barack Obama",
    "unbelievable players walking ☃ in Paris",
    "",
    "Angela",
    "Merkel met  unbelievable Obama\tin 2016 !",
]
STRATEGIES = ["none", "simple", "first", "average", "max"]


def setup(model_type, tmp_path):
    transformers = pytest.importorskip("transformers")
    names = dict(enumerate(LABELS))
    model, tokenizer, runner = tiny(
        model_type, "TokenClassification", tmp_path, num_labels=len(LABELS), id2label=names
    )
    pipeline = transformers.TokenClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    return pipeline, runner


def assert_same(found, expected, strategy, text):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        label = theirs["entity"] if strategy == "none" else theirs["entity_group"]
        assert (ours.label, ours.word, ours.start, ours.end) == (
            label, theirs["word"], theirs["start"], theirs["end"],
        )  # fmt: skip
        assert ours.score == pytest.approx(float(theirs["score"]), abs=1e-5)
        if strategy == "none":
            assert ours.index == theirs["index"]
        else:
            assert ours.text == text[ours.start : ours.end]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_entities_equal_those_of_the_pipeline(model_type, strategy, tmp_path):
    pipeline, runner = setup(model_type, tmp_path)
    found = tag_texts(runner, TEXTS, labels=LABELS, aggregation_strategy=strategy)
    assert any(found)
    for text, ours in zip(TEXTS, found):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = pipeline(text, aggregation_strategy=strategy) if text else []
        assert_same(ours, expected, strategy, text)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entities_of_tweets_equal_those_of_the_pipeline(strategy, tmp_path):
    lines = data("wnut17/emerging.dev.conll").read_text(encoding="utf-8").split("\n\n")[:40]
    texts = [" ".join(row.split("\t")[0] for row in line.splitlines() if row) for line in lines]
    texts = [text for text in texts if text]
    pipeline, runner = setup("bert", tmp_path)
    found = tag_texts(runner, texts, labels=LABELS, aggregation_strategy=strategy)
    for text, ours in zip(texts, found):
        assert_same(ours, pipeline(text, aggregation_strategy=strategy), strategy, text)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_long_texts_are_read_in_windows_as_in_the_pipeline(strategy, tmp_path):
    pipeline, runner = setup("bert", tmp_path)
    text = " ".join(TEXTS) * 4
    found = tag_texts(runner, text, labels=LABELS, aggregation_strategy=strategy, stride=8)
    pipeline.tokenizer.model_max_length = 64
    assert_same(found, pipeline(text, aggregation_strategy=strategy, stride=8), strategy, text)
    assert found[-1].end > 200


def test_words_equal_those_of_the_pipeline(tmp_path):
    pipeline, runner = setup("bert", tmp_path)
    words = TEXTS[0].split()
    found = tag_texts(runner, words, labels=LABELS, is_split_into_words=True)
    expected = pipeline(words, aggregation_strategy="simple", is_split_into_words=True)
    expected = expected[0] if expected and isinstance(expected[0], list) else expected
    assert_same(found, expected, "simple", " ".join(words))


def test_a_text_that_is_cut_off_is_reported(tmp_path, capfd):
    _, runner = setup("bert", tmp_path)
    tag_texts(runner, ["film " * 100, "film"], labels=LABELS)
    assert "1 of 2 texts are longer than the model's maximum" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"aggregation_strategy": "last"}, "aggregation_strategy is 'last'; expected one of none, simple"),
        ({"aggregation_strategy": "none", "stride": 4}, "cannot be used with a stride"),
        ({"labels": ["O"]}, "the model returns 6 logits per token for 1 labels"),
        ({"is_split_into_words": True}, "text 0 is a str; expected a list of words"),
    ],
)
def test_a_wrong_argument_raises(arguments, message, tmp_path):
    _, runner = setup("bert", tmp_path)
    texts = ["film", ["a"]] if "is_split_into_words" in arguments else ["film"]
    with pytest.raises(HFError, match=message):
        tag_texts(runner, texts, **{"labels": LABELS, **arguments})
