import pytest

from flodl.core import HFError
from flodl.hf.predict import Runner, fill_masks

from .pipelines import tiny

# At least the tokens of the tokenizer; each of them can be decoded.
VOCABULARY = {"roberta": 400, "bert": 128}


def setup(model_type, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, tokenizer, runner = tiny(model_type, "MaskedLM", tmp_path, vocab_size=VOCABULARY[model_type])
    pipeline = transformers.FillMaskPipeline(model=model, tokenizer=tokenizer, device="cpu")
    return pipeline, runner


def plain(results):
    return [
        {"token": item["token"], "token_str": item["token_str"], "sequence": item["sequence"]}
        for item in results
    ]


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_fills_equal_those_of_the_pipeline(model_type, tmp_path):
    pipeline, runner = setup(model_type, tmp_path)
    mask = runner.tokenizer.mask.text
    texts = [f"the {mask} is moving .", f"{mask} lives in paris", f"a film about {mask} and a lazy dog !"]
    found = fill_masks(runner, texts, top_k=4)
    for text, ours in zip(texts, found):
        expected = pipeline(text, top_k=4)
        assert plain(ours) == plain(expected)
        assert [item.score for item in ours] == pytest.approx([item["score"] for item in expected], abs=1e-6)


def test_a_model_may_compute_logits_at_masks_only(tmp_path):
    _, runner = setup("bert", tmp_path)
    seen = []

    def forward(positions, **inputs):
        seen.append(len(positions))
        return runner.forward(**inputs).flatten(0, 1)[positions]

    texts = ["the [MASK] is [MASK] .", "a film about [MASK]", "[MASK]"]
    chosen = Runner(forward, runner.tokenizer, takes_positions=True)
    assert fill_masks(chosen, texts) == fill_masks(runner, texts)
    assert seen == [4]


def test_each_of_several_masks_is_filled(tmp_path):
    pipeline, runner = setup("bert", tmp_path)
    text = "the [MASK] is [MASK] ."
    found, expected = fill_masks(runner, text, top_k=2), pipeline(text, top_k=2)
    assert [plain(mask) for mask in found] == [plain(mask) for mask in expected]


def test_targets_equal_those_of_the_pipeline(tmp_path):
    pipeline, runner = setup("bert", tmp_path)
    text, targets = "the [MASK] is moving", ["film", "dog", "boy"]
    found, expected = fill_masks(runner, text, targets=targets), pipeline(text, targets=targets)
    assert plain(found) == plain(expected)
    assert fill_masks(runner, text, targets="film")[0].token_str == "film"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("no mask here", {}, r"text 0 contains no mask: 'no mask here'\. Write \[MASK\]"),
        ("film " * 99 + "[MASK]", {}, "text 0 after truncation contains no mask"),
        ("a [MASK]", {"top_k": 0}, "top_k is 0"),
        ("a [MASK]", {"targets": []}, "targets is empty"),
        (
            "a [MASK]",
            {"targets": "playing"},
            "the target 'playing' is not a token of .* 'play', '##ing'",
        ),
    ],
)
def test_a_wrong_argument_raises(text, arguments, message, tmp_path):
    _, runner = setup("bert", tmp_path)
    with pytest.raises(HFError, match=message):
        fill_masks(runner, text, **arguments)
