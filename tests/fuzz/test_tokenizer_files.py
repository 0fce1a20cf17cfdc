"""Damaged tokenizer files give one of our errors, or a tokenizer that works."""

import json
import shutil
from contextlib import suppress

import pytest

from flodl.core import HFError
from flodl.hf.text import Tokenizer

from ..hf.small_tokenizers import byte_level, sentence_pieces, tokenizer_json, word_piece

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    bert = word_piece(root / "bert", do_lower_case=True)
    (bert / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    spm = root / "albert"
    spm.mkdir()
    start = [("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("[MASK]", 4)]
    (spm / "spm.model").write_bytes(sentence_pieces(start, unk_id=1))
    return [
        (bert, "bert"),
        (byte_level(root / "roberta"), "roberta"),
        (tokenizer_json(root / "json", bert, "bert"), "bert"),
        (spm, "albert"),
    ]


def damaged(rng, data):
    data = bytearray(data)
    match rng.randrange(4):
        case 0:
            return bytes(data[: rng.randrange(len(data) + 1)])
        case 1:
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            at = rng.randrange(len(data))
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 5)))
        case 3:
            at = rng.randrange(len(data))
            del data[at : at + rng.randint(1, 40)]
    return bytes(data)


def test_a_damaged_tokenizer_raises_our_error_or_works(fuzz, sources, tmp_path):
    def check(rng):
        source, model_type = rng.choice(sources)
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        path = rng.choice(sorted(folder.iterdir()))
        path.write_bytes(damaged(rng, path.read_bytes()))
        with suppress(HFError):
            tokenizer = Tokenizer.from_directory(folder, config={"model_type": model_type})
            found = tokenizer(["the film is moving .", ""], ["a b", "c"], max_length=20)
            assert found["input_ids"].shape == found["attention_mask"].shape

    fuzz(check)
