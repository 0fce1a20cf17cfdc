import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from flodl.core import HFError
from flodl.hf.predict import Pooling, Runner, embed_texts
from flodl.hf.predict.pooling import MODES
from flodl.hf.text import Tokenizer

from ..small_tokenizers import word_piece
from .pipelines import tiny

TEXTS = ["The film is moving .", "the lazy dog", "a", "unbelievable players in Paris , walking !"]


def write(
    folder, *, modules=("Transformer", "Pooling", "Normalize"), pooling=None, transformer=None, more=None
):
    folder.mkdir(exist_ok=True)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {"idx": index, "path": paths.get(kind, kind), "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(modules)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    settings = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if transformer is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    if more is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(more))
    return folder


def expected(mode, rows):
    """Pool the real tokens [S, H] of one text, by the definition."""
    weights = torch.arange(1.0, len(rows) + 1)[:, None]
    return {
        "cls": lambda: rows[0],
        "max": lambda: rows.max(0).values,
        "mean": lambda: rows.mean(0),
        "mean_sqrt_len_tokens": lambda: rows.sum(0) / len(rows) ** 0.5,
        "weightedmean": lambda: (rows * weights).sum(0) / weights.sum(),
        "lasttoken": lambda: rows[-1],
    }[mode]()


@pytest.mark.parametrize("mode", MODES)
def test_vectors_equal_those_of_single_texts_without_padding(mode, tmp_path):
    model, tokenizer, runner = tiny("bert", "", tmp_path)
    found = embed_texts(runner, TEXTS, pooling=Pooling(modes=(mode,)))
    assert found.shape == (4, 32)
    for text, vector in zip(TEXTS, found):
        with torch.inference_mode():
            rows = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(vector, expected(mode, rows), atol=1e-5, rtol=1e-5)
    normalized = embed_texts(runner, TEXTS, pooling=Pooling(modes=(mode,)), normalize=True)
    torch.testing.assert_close(normalized.norm(dim=1), torch.ones(4))


def test_several_modes_are_concatenated_in_the_order_of_sentence_transformers(tmp_path):
    _, _, runner = tiny("bert", "", tmp_path)
    both = embed_texts(runner, TEXTS, pooling=Pooling(modes=("mean", "cls")))
    parts = [embed_texts(runner, TEXTS, pooling=Pooling(modes=(mode,))) for mode in ("cls", "mean")]
    torch.testing.assert_close(both, torch.cat(parts, dim=1))


def test_one_text_gives_a_vector_and_no_text_an_empty_matrix(tmp_path):
    _, _, runner = tiny("bert", "", tmp_path)
    assert embed_texts(runner, "the film").shape == (32,)
    assert len(embed_texts(runner, [])) == 0


def test_pooling_on_the_left_ignores_padding():
    hidden = torch.randn(1, 5, 3)
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    for mode in ("cls", "lasttoken", "mean", "max", "mean_sqrt_len_tokens"):
        pooled = Pooling(modes=(mode,)).pool(hidden, mask)[0]
        torch.testing.assert_close(pooled, expected(mode, hidden[0, 2:]))


def test_the_files_of_sentence_transformers_are_read(tmp_path):
    folder = write(
        tmp_path / "model",
        pooling={"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False, "include_prompt": False},
        transformer={"max_seq_length": 6, "do_lower_case": True},
        more={"prompts": {"query": "find : "}, "default_prompt_name": None},
    )
    assert Pooling.from_directory(folder) == Pooling(
        modes=("cls",),
        normalize=True,
        max_length=6,
        lower_case=True,
        include_prompt=False,
        prompts={"query": "find : "},
    )
    newer = write(
        tmp_path / "newer", modules=("Transformer", "Pooling"), pooling={"pooling_mode": "lasttoken"}
    )
    assert Pooling.from_directory(newer) == Pooling(modes=("lasttoken",))
    assert Pooling.from_directory(tmp_path) == Pooling()


def lengths(tmp_path):
    """A model whose hidden states are the ids of the tokens."""
    config = {"model_type": "bert", "max_position_embeddings": 64, "vocab_size": 500}
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=config)
    return Runner(lambda input_ids, **inputs: input_ids[..., None].float(), tokenizer)


def test_the_limit_of_sentence_transformers_applies(tmp_path):
    runner = lengths(tmp_path)
    cut = embed_texts(runner, "the film is a moving story", pooling=Pooling(max_length=4))
    assert torch.equal(cut, embed_texts(runner, "the film"))


def test_a_prompt_is_put_in_front_and_can_be_left_out_of_the_mean(tmp_path):
    runner, prompts = lengths(tmp_path), {"query": "What is "}
    pooling = Pooling(prompts=prompts)
    found = embed_texts(runner, "the film", pooling=pooling, prompt_name="query")
    assert torch.equal(found, embed_texts(runner, "What is the film"))
    assert torch.equal(found, embed_texts(runner, "the film", prompt="What is "))
    default = replace(pooling, default_prompt="query")
    assert torch.equal(found, embed_texts(runner, "the film", pooling=default))
    without = embed_texts(runner, "the film", pooling=replace(default, include_prompt=False))
    ids = runner.tokenizer.encode(["the film"])[0].ids[1:]
    assert without.item() == pytest.approx(sum(ids) / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"modules": ("Transformer", "Pooling", "LSTM")},
            "contains the module 'sentence.*LSTM'",
        ),
        ({"modules": ("Transformer",)}, "has no pooling module"),
        ({"pooling": {}}, r"1_Pooling/config\.json has the pooling modes \[\]"),
        ({"pooling": {"pooling_mode": "median"}}, r"has the pooling modes \['median'\]"),
        ({"pooling": {"pooling_mode_odd": True}}, r"has the pooling modes \['pooling_mode_odd'\]"),
        ({"transformer": {"max_seq_length": "x"}}, r"sentence_bert_config\.json: max_seq_length is 'x'"),
        ({"more": {"prompts": {"q": 1}}}, "prompts must map names to texts"),
        ({"more": {"default_prompt_name": "q"}}, "contain the default prompt 'q'"),
    ],
)
def test_what_is_not_supported_raises(change, message, tmp_path):
    with pytest.raises(HFError, match=message):
        Pooling.from_directory(write(tmp_path, **change))


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"type": "x"}]', '[{"type": "a.Pooling", "path": "../.."}]'])
def test_a_damaged_list_of_modules_raises(text, tmp_path):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(HFError, match=r"modules\.json"):
        Pooling.from_directory(tmp_path)


def dense(folder, *, bias=True, activation="torch.nn.modules.activation.Tanh", **settings):
    folder.mkdir(parents=True, exist_ok=True)
    layer = torch.nn.Linear(32, 8, bias=bias)
    config = {
        "in_features": 32,
        "out_features": 8,
        "bias": bias,
        "activation_function": activation,
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {f"linear.{name}": value for name, value in layer.state_dict().items()}, folder / "model.safetensors"
    )
    return layer


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_follows_the_pooling(bias, tmp_path):
    _, _, runner = tiny("bert", "", tmp_path)
    folder = write(tmp_path / "model", modules=("Transformer", "Pooling", "Dense", "Normalize"))
    layer = dense(folder / "Dense", bias=bias)
    with torch.no_grad():
        expected = torch.tanh(layer(embed_texts(runner, TEXTS)))
    found = embed_texts(runner, TEXTS, pooling=Pooling.from_directory(folder))
    torch.testing.assert_close(found, torch.nn.functional.normalize(expected))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "os.system"}, "the activation 'os.system' is not supported"),
        ({"out_features": 9}, r"linear.weight is of shape \(8, 32\); expected \(9, 32\)"),
        ({"bias": False, "in_features": 32}, None),
    ],
)
def test_a_linear_layer_that_does_not_fit_raises(settings, message, tmp_path):
    folder = write(tmp_path, modules=("Transformer", "Pooling", "Dense"))
    dense(folder / "Dense", **settings)
    if message is None:
        message = "linear.bias does not match"
        config = json.loads((folder / "Dense" / "config.json").read_text())
        (folder / "Dense" / "config.json").write_text(json.dumps({**config, "bias": True}))
    with pytest.raises(HFError, match=message):
        Pooling.from_directory(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_damaged_weights_of_a_linear_layer_raise(name, tmp_path):
    folder = write(tmp_path, modules=("Transformer", "Pooling", "Dense"))
    dense(folder / "Dense")
    (folder / "Dense" / "model.safetensors").unlink()
    (folder / "Dense" / name).write_bytes(b"damaged")
    with pytest.raises(HFError, match=f"{name} cannot be read"):
        Pooling.from_directory(folder)


def test_an_unknown_prompt_raises_with_a_suggestion(tmp_path):
    with pytest.raises(HFError, match=r"no prompt 'querry'\. Did you mean 'query'"):
        embed_texts(lengths(tmp_path), "a", pooling=Pooling(prompts={"query": ""}), prompt_name="querry")
