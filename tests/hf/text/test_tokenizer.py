import copy
import json
import os
import pickle

import pytest
import torch

from flodl.core import HFError
from flodl.hf.text import Tokenizer

from ..small_tokenizers import byte_level, tokenizer_json, word_piece

os.environ["HF_HUB_OFFLINE"] = "1"

BERT = {"model_type": "bert", "max_position_embeddings": 64, "vocab_size": 500}
ROBERTA = {"model_type": "roberta", "max_position_embeddings": 66, "vocab_size": 500, "pad_token_id": 1}
TEXTS = [
    "The film is moving .",
    "unbelievable players in Paris, walking!",
    "",
    "Ünïcödé 你好 🤗 [MASK] <mask> x",
    "a\tb\nc   d",
    "where " * 100,
]


@pytest.fixture(params=["bert", "roberta"])
def folder(request, tmp_path):
    if request.param == "bert":
        return tokenizer_json(tmp_path / "json", word_piece(tmp_path / "old"), "bert"), BERT
    return tokenizer_json(tmp_path / "json", byte_level(tmp_path / "old"), "roberta"), ROBERTA


def reference(folder):
    transformers = pytest.importorskip("transformers")
    file = folder / "tokenizer.json"
    pad = "[PAD]" if "WordPiece" in file.read_text() else "<pad>"
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), model_max_length=64, pad_token=pad)


def test_texts_are_encoded_and_padded_as_in_transformers(folder):
    path, config = folder
    tokenizer = Tokenizer.from_directory(path, config=config)
    expected = reference(path)(
        TEXTS, padding=True, truncation=True, return_tensors="pt", return_token_type_ids=True
    )
    found = tokenizer(TEXTS)
    assert found["input_ids"].shape == (len(TEXTS), 64)
    for name, values in found.items():
        assert torch.equal(values, expected[name]), name


def test_pairs_are_truncated_as_in_transformers(folder):
    path, config = folder
    tokenizer, theirs = Tokenizer.from_directory(path, config=config), reference(path)
    first, second = [TEXTS[0], "the lazy fox"], [TEXTS[5], "The lazy dog . " * 5]
    expected = theirs(first, second, padding=True, truncation=True, max_length=20, return_tensors="pt")
    assert torch.equal(tokenizer(first, second, max_length=20)["input_ids"], expected["input_ids"])
    windows = tokenizer.encode(first, second, max_length=20, truncation="only_second", stride=4)
    expected = theirs(
        first, second, truncation="only_second", max_length=20, stride=4, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_special_tokens_mask=True,
    )  # fmt: skip
    found = [window for item in windows for window in (item, *item.overflowing)]
    assert [window.ids for window in found] == expected["input_ids"]
    assert [window.offsets for window in found] == expected["offset_mapping"]
    assert [window.special_tokens_mask for window in found] == expected["special_tokens_mask"]
    assert [window.word_ids for window in found] == [expected.word_ids(i) for i in range(len(found))]


def test_roberta_pads_with_its_own_id_and_has_no_token_types(tmp_path):
    tokenizer = Tokenizer.from_directory(byte_level(tmp_path), config=ROBERTA)
    found = tokenizer(["The film", "The film is a moving story"])
    assert list(found) == ["input_ids", "attention_mask"]
    assert tokenizer.pad_id == 1
    assert tokenizer.max_length == 64
    assert torch.equal(found["input_ids"] == 1, found["attention_mask"] == 0)


def test_the_pad_id_comes_from_the_config_if_the_tokenizer_has_no_pad_token(tmp_path):
    folder = word_piece(tmp_path)
    lines = (folder / "vocab.txt").read_text().replace("[PAD]", "[unused0]")
    (folder / "vocab.txt").write_text(lines)
    assert Tokenizer.from_directory(folder, config={**BERT, "pad_token_id": 7}).pad_id == 7


def test_padding_on_the_left_is_read_from_the_settings(tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path, padding_side="left"), config=BERT)
    mask = tokenizer(["the film", "the film is a story"])["attention_mask"]
    assert mask[0].tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_padding_and_truncation_in_tokenizer_json_are_replaced(tmp_path):
    folder = tokenizer_json(tmp_path / "json", word_piece(tmp_path / "old"), "bert")
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["padding"] = {
        "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    settings["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    assert Tokenizer.from_directory(folder, config=BERT)(["the film is a story"])["input_ids"].shape == (1, 7)


def test_do_lower_case_of_the_settings_overrides_tokenizer_json(tmp_path):
    folder = tokenizer_json(tmp_path / "json", word_piece(tmp_path / "old"), "bert")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    tokenizer = Tokenizer.from_directory(folder, config=BERT)
    assert "[UNK]" in tokenizer.encode(["The film"])[0].tokens


def test_a_model_without_a_limit_does_not_truncate(tmp_path):
    folder = word_piece(tmp_path, model_max_length=int(1e30))
    tokenizer = Tokenizer.from_directory(folder, config={"model_type": "distilbert"})
    assert tokenizer.max_length is None
    assert tokenizer(["film " * 700])["input_ids"].shape == (1, 702)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_tokenizer_can_be_copied_and_sent_to_another_process(copied, tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=BERT)
    assert torch.equal(copied(tokenizer)(TEXTS)["input_ids"], tokenizer(TEXTS)["input_ids"])


def test_several_threads_may_encode_with_different_limits(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=BERT)
    limits = [3 + index % 7 for index in range(60)]
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda limit: len(tokenizer.encode(["film " * 20], max_length=limit)[0]), limits)
        )
    assert found == limits


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t(["a", None]), r"text 1 is a NoneType \(None\); expected a string"),
        (lambda t: t(["a", "\ud800"]), "text 1 contains half of a surrogate pair at character 0"),
        (lambda t: t(["a"], ["b", "c"]), "there are 1 texts and 2 second texts"),
        (lambda t: t([]), "the list is empty"),
        (lambda t: t.encode("text"), "expected a list of texts, got one text"),
        (lambda t: t(["a"], max_length=2), "max_length=2 has no room for text"),
        (
            lambda t: t(["a"], max_length=100),
            "max_length=100 is out of range; .* at most 64",
        ),
        (lambda t: t.encode(["a"], max_length=8, stride=6), "stride=6 does not fit"),
        (
            lambda t: t.encode(["film " * 20], ["a"], max_length=10, truncation="only_second"),
            "the first text of a pair leaves no room",
        ),
    ],
)
def test_a_wrong_argument_raises(call, message, tmp_path):
    with pytest.raises(HFError, match=message):
        call(Tokenizer.from_directory(word_piece(tmp_path), config=BERT))


def test_a_tokenizer_of_another_model_raises_at_the_first_id_that_is_too_large(tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config={**BERT, "vocab_size": 20})
    with pytest.raises(HFError, match=r"has the id \d+, but the model has 20 tokens"):
        tokenizer(["walked"])


def test_words_of_byte_level_tokenizers_have_a_space_in_front_and_right_offsets(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = byte_level(tmp_path)
    theirs = transformers.RobertaTokenizer.from_pretrained(folder, add_prefix_space=True)
    words = ["unbelievable", "film", "in", "Paris"]
    expected = theirs(words, is_split_into_words=True, return_offsets_mapping=True)
    tokenizer = Tokenizer.from_directory(folder, config=ROBERTA)
    found = tokenizer.encode([words], split_into_words=True)[0]
    assert found.ids == expected["input_ids"]
    assert found.offsets == expected["offset_mapping"]
    assert found.word_ids == expected.word_ids()
    assert tokenizer.encode(["film"])[0].tokens[1] != "Ġfilm"


def test_words_are_encoded_one_by_one(tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config=BERT)
    found = tokenizer.encode([["unbelievable", "film"]], split_into_words=True)[0]
    assert found.tokens == [
        "[CLS]",
        "un",
        "##b",
        "##e",
        "##l",
        "##i",
        "##e",
        "##v",
        "##able",
        "film",
        "[SEP]",
    ]
    assert found.word_ids[1:-1] == [0] * 8 + [1]
