"""Damaged models: any change of a file gives a model or one of our errors, and nothing is executed."""

import io
import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file

from flodl.core import HFError
from flodl.hf import AutoModelForMaskedLM, AutoModelForSequenceClassification

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 11,
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "id2label": {"0": "no", "1": "yes"},
    "pad_token_id": 0,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "tie_word_embeddings": True,
}
VALUES = [
    None, True, False, 0, -1, 1, 2, 10**9, 10**30, 0.5, -0.0, float("inf"), float("nan"), "", "x", "gelu",
    "relu", "bert", [], ["a"], [[]], {}, {"0": 1}, {"a": "b"}, "\ud800", "é" * 50,
]  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "model"
    AutoModelForSequenceClassification.from_config(CONFIG, seed=1).export(folder, max_shard_bytes=500)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def damage(content: bytes, rng: random.Random) -> bytes:
    """Cut, extend, flip or replace some bytes."""
    match rng.randrange(5):
        case 0:
            return content[: rng.randrange(len(content) + 1)]
        case 1:
            return content + rng.randbytes(rng.randrange(1, 40))
        case 2:
            start = rng.randrange(len(content) + 1)
            return content[:start] + content[start + rng.randrange(1, 20) :]
        case 3:
            return rng.randbytes(rng.randrange(60))
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 5)):
        # The headers are at the beginning.
        position = rng.randrange(min(len(changed), rng.choice([16, 200, len(changed)])))
        changed[position] = rng.randrange(256)
    return bytes(changed)


def load(folder, auto=AutoModelForSequenceClassification):
    """Load a model, or return the error that says why not."""
    try:
        return auto.from_pretrained(folder)
    except HFError as error:
        return error


def test_damaged_files(folder, original, fuzz, capsys):
    names = sorted(path.name for path in original.iterdir())

    def check(rng):
        name = rng.choice(names)
        content = (original / name).read_bytes()
        (folder / name).write_bytes(damage(content, rng))
        found = load(folder)
        if isinstance(found, HFError) and name.endswith(".safetensors"):
            assert name in str(found) or "index.json" in str(found)
        (folder / name).write_bytes(content)

    fuzz(check)


def test_changed_headers_of_safetensors(folder, original, fuzz):
    """Damage that keeps the header valid JSON: sizes, types and offsets that do not fit."""
    name = min(path.name for path in original.glob("*.safetensors"))
    content = (original / name).read_bytes()
    length = int.from_bytes(content[:8], "little")

    def check(rng):
        header = json.loads(content[8 : 8 + length])
        key = rng.choice([key for key in header if key != "__metadata__"])
        entry = header[key]
        match rng.randrange(5):
            case 0:
                entry["shape"] = rng.choice([[], [-1], [0], [2**62, 2**62], "x", [1.5], entry["shape"] + [1]])
            case 1:
                entry["dtype"] = rng.choice(["F64", "F4", "I64", "BOOL", 3, None, "BF16", "C64", "U64"])
            case 2:
                start, stop = entry["data_offsets"]
                offsets = [[stop, start], [0, 10**15], [-1, 5], [start + 1, stop + 1], [], "x"]
                entry["data_offsets"] = rng.choice(offsets)
            case 3:
                header[rng.choice(["x", "", "\ud7ff", "bert.x"])] = entry
            case 4:
                header["__metadata__"] = rng.choice([{}, {"format": 3}, [], "x", {"format": "tf"}])
        text = json.dumps(header).encode()
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        load(folder)

    fuzz(check)


def test_changed_configs(folder, original, fuzz):
    config = json.loads((original / "config.json").read_text())

    def check(rng):
        changed = dict(config)
        for _ in range(rng.randrange(1, 3)):
            name = rng.choice(
                [*config, "num_labels", "is_decoder", "problem_type", "label2id", "embedding_size"]
            )
            changed[name] = rng.choice(VALUES)
        (folder / "config.json").write_text(json.dumps(changed))
        found = load(folder, rng.choice([AutoModelForSequenceClassification, AutoModelForMaskedLM]))
        if isinstance(found, HFError):
            assert "config" in str(found) or "safetensors" in str(found)
        else:
            assert not any(parameter.is_meta for parameter in found.parameters())

    fuzz(check)


def test_changed_indexes(folder, original, fuzz):
    index = json.loads((original / "model.safetensors.index.json").read_text())

    def check(rng):
        weights = dict(index["weight_map"])
        key = rng.choice([*weights])
        match rng.randrange(4):
            case 0:
                weights[key] = rng.choice([*VALUES, "../config.json", "config.json", "/etc/passwd", "a\0b"])
            case 1:
                del weights[key]
            case 2:
                weights[key] = rng.choice([*weights.values()])
            case 3:
                weights = rng.choice(VALUES)
        content = rng.choice([{"weight_map": weights}, {**index, "weight_map": weights}, weights])
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
        load(folder)

    fuzz(check)


@pytest.mark.parametrize("is_zip", [True, False])
def test_damaged_files_of_torch_save(folder, is_zip, fuzz):
    tensors = {}
    for path in folder.glob("model*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    stream = io.BytesIO()
    torch.save(tensors, stream, _use_new_zipfile_serialization=is_zip)

    def check(rng):
        (folder / "pytorch_model.bin").write_bytes(damage(stream.getvalue(), rng))
        found = load(folder)
        if isinstance(found, HFError):
            assert "pytorch_model.bin" in str(found)

    fuzz(check)


def test_damaged_lists_of_modules(folder, fuzz):
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]

    def check(rng):
        module = dict(modules[0])
        module[rng.choice([*module])] = rng.choice([*VALUES, "..", "/", "1_x", "a/../b", "Transformer"])
        (folder / "modules.json").write_text(json.dumps(rng.choice([[module], module, [module, 3], [[]]])))
        load(folder)

    fuzz(check)
