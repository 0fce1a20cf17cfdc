import json
import os

import pytest

from flodl.core import HFError
from flodl.hf.text import Tokenizer

from ..small_tokenizers import BERT_SPECIAL, byte_level, sentence_pieces, word_piece

os.environ["HF_HUB_OFFLINE"] = "1"

TEXTS = ["The film is moving .", "unbelievable players, Walking", "Café 你好 [MASK] <mask> x", "a  b\tc ", ""]


def ids(tokenizer, texts=TEXTS):
    return [item.ids for item in tokenizer.encode(texts)]


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_word_pieces_equal_those_of_transformers(settings, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = word_piece(tmp_path, **settings)
    theirs = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), **settings)
    found = Tokenizer.from_directory(folder, config={"model_type": "bert"})
    assert ids(found) == [theirs(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}])
def test_byte_pairs_equal_those_of_transformers(settings, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = byte_level(tmp_path, **settings)
    theirs = transformers.RobertaTokenizer.from_pretrained(folder, **settings)
    found = Tokenizer.from_directory(folder, config={"model_type": "roberta"})
    texts = [text for text in TEXTS if "<mask>" not in text]
    assert ids(found, texts) == [theirs(text)["input_ids"] for text in texts]
    first, second = found.encode(["a"], ["film"])[0].ids, theirs("a", "film")["input_ids"]
    assert first == second


def test_a_vocabulary_with_capital_letters_keeps_the_case(tmp_path):
    folder = word_piece(tmp_path)
    with (folder / "vocab.txt").open("a") as file:
        file.write("Paris\n")
    found = Tokenizer.from_directory(folder, config={"model_type": "bert"})
    assert found.encode(["Paris film"])[0].tokens[1:3] == ["Paris", "film"]


def test_the_space_before_a_mask_belongs_to_it(tmp_path):
    found = Tokenizer.from_directory(byte_level(tmp_path), config={"model_type": "roberta"})
    encoding = found.encode(["the <mask> is"])[0]
    assert encoding.ids[-3] == found.mask.id
    assert [encoding.tokens[1], encoding.tokens[-2]] == ["the", "Ġis"]


SPM = {
    "albert": [("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("[MASK]", 4)],
    "deberta-v2": [("[PAD]", 3), ("[CLS]", 3), ("[SEP]", 3), ("[UNK]", 2)],
    "xlm-roberta": [("<unk>", 2), ("<s>", 3), ("</s>", 3)],
}
UNK = {"albert": 1, "deberta-v2": 3, "xlm-roberta": 0}


@pytest.mark.parametrize("model_type", SPM)
def test_a_sentencepiece_model_becomes_a_tokenizer(model_type, tmp_path):
    (tmp_path / "spm.model").write_bytes(sentence_pieces(SPM[model_type], unk_id=UNK[model_type]))
    tokenizer = Tokenizer.from_directory(tmp_path, config={"model_type": model_type})
    single = tokenizer.encode(["the film  is ☃ ok"])[0]
    ends = ("<s>", "</s>") if model_type == "xlm-roberta" else ("[CLS]", "[SEP]")
    unknown = "[UNK]" if model_type == "deberta-v2" else "<unk>"
    assert single.tokens[0] == ends[0]
    assert single.tokens[-1] == ends[1]
    assert single.tokens[1:4] == ["▁the", "▁film", "▁is"]
    assert single.ids[single.tokens.index("☃")] == tokenizer.backend.token_to_id(unknown)
    assert tokenizer.mask.id is not None
    assert tokenizer.pad_id == {"albert": 0, "deberta-v2": 0, "xlm-roberta": 1}[model_type]
    pair = tokenizer.encode(["the"], ["film"])[0]
    assert pair.tokens.count(ends[1]) == (3 if model_type == "xlm-roberta" else 2)


def test_albert_lowers_the_case_and_splits_numbers_at_commas(tmp_path):
    (tmp_path / "spiece.model").write_bytes(sentence_pieces(SPM["albert"], unk_id=1))
    tokenizer = Tokenizer.from_directory(tmp_path, config={"model_type": "albert"})
    assert tokenizer.encode(["The Film"])[0].tokens == ["[CLS]", "▁the", "▁film", "[SEP]"]
    assert "1," not in tokenizer.encode(["1, 2"])[0].tokens


@pytest.mark.parametrize(
    ("algorithm", "model_type", "message"),
    [
        (2, "albert", r"with the algorithm 2; .* Save a tokenizer\.json"),
        (1, "bert", "the model type is 'bert'"),
    ],
)
def test_a_sentencepiece_model_that_cannot_be_used_raises(algorithm, model_type, message, tmp_path):
    (tmp_path / "spm.model").write_bytes(sentence_pieces(SPM["albert"], algorithm=algorithm, unk_id=1))
    with pytest.raises(HFError, match=message):
        Tokenizer.from_directory(tmp_path, config={"model_type": model_type})


def test_added_tokens_keep_their_ids(tmp_path):
    folder = word_piece(tmp_path)
    size = len((folder / "vocab.txt").read_text().splitlines())
    (folder / "added_tokens.json").write_text(json.dumps({"<b>": size + 1, "<a>": size}))
    tokenizer = Tokenizer.from_directory(folder, config={"model_type": "bert"})
    assert tokenizer.encode(["film <b> <a>"])[0].ids[2:4] == [size + 1, size]


def write(name, text):
    def change(folder):
        (folder / name).write_text(text)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (write("tokenizer.json", "{"), "tokenizer.json does not contain a usable tokenizer"),
        (
            write("tokenizer.json", "{}"),
            "tokenizer.json does not contain a usable .*: Model missing",
        ),
        (write("tokenizer_config.json", "[]"), r"tokenizer_config\.json contains a list"),
        (write("tokenizer_config.json", "no"), r"tokenizer_config\.json is not valid JSON"),
        (write("tokenizer_config.json", '{"padding_side": "up"}'), "padding_side is 'up'"),
        (write("vocab.txt", "[UNK]\n[CLS]\n"), r"vocab\.txt does not contain the special token '\[SEP\]'"),
        (write("vocab.txt", ""), r"does not contain the special token '\[UNK\]' \(it has 0 tokens\)"),
        (lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\xfe"), r"vocab\.txt is not UTF-8 text"),
        (write("added_tokens.json", '{"<a>": 5}'), r"the token '<a>' should have the id 5"),
        (lambda folder: (folder / "vocab.txt").unlink(), "the model has no tokenizer"),
    ],
)
def test_a_damaged_file_raises_and_is_named(change, message, tmp_path):
    folder = word_piece(tmp_path)
    change(folder)
    with pytest.raises(HFError, match=message):
        Tokenizer.from_directory(folder, config={"model_type": "bert"})


def test_a_damaged_list_of_merges_raises_with_its_line(tmp_path):
    folder = byte_level(tmp_path)
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nthree pieces here\n")
    with pytest.raises(HFError, match=r"merges\.txt, line 3: expected two pieces"):
        Tokenizer.from_directory(folder, config={"model_type": "roberta"})


def test_a_folder_without_tokenizer_files_raises(tmp_path):
    with pytest.raises(HFError, match="has no tokenizer files"):
        Tokenizer.from_directory(tmp_path)


def test_special_tokens_in_a_text_are_one_token(tmp_path):
    tokenizer = Tokenizer.from_directory(word_piece(tmp_path), config={"model_type": "bert"})
    for token in BERT_SPECIAL:
        assert token in tokenizer.encode([f"film {token} film"])[0].tokens[1:-1]
