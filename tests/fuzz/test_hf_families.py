"""Damaged models of every family: wrong configs and weights give one of our errors, or a whole model."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.core import HFError
from flodl.hf import AutoModel, AutoModelForMaskedLM, AutoModelForQuestionAnswering

SIZES = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": 12,
    "pad_token_id": 0,
}
FAMILIES = {
    "bert": {"type_vocab_size": 2, "layer_norm_eps": 1e-12},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1, "hidden_dropout_prob": 0.1},
    "xlm-roberta": {"type_vocab_size": 1, "pad_token_id": 1, "classifier_dropout": None},
    "distilbert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 6, "activation": "gelu"},
    "albert": {"embedding_size": 4, "num_hidden_groups": 1, "inner_group_num": 1, "type_vocab_size": 2},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 4,
        "max_relative_positions": -1,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "conv_kernel_size": 3,
        "legacy": True,
        "type_vocab_size": 0,
        "pooler_hidden_act": "gelu",
    },
    "modernbert": {
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 100.0,
        "norm_eps": 1e-5,
        "layer_types": ["full_attention", "sliding_attention"],
        "classifier_pooling": "cls",
        "mlp_bias": False,
    },
}
VALUES = [
    None, True, False, 0, -1, 1, 2, 3, 10**9, 10**30, 0.5, -0.0, float("inf"), float("nan"), "", "x", "gelu",
    "relu", "bert", "c2p", "cls", [], ["a"], ["c2p"], [[]], {}, {"0": 1}, {"a": "b"}, "\ud800",
]  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / request.param
    config = {"model_type": request.param, **SIZES, **FAMILIES[request.param]}
    AutoModelForMaskedLM.from_config(config, seed=1).export(folder)
    return folder


def load(folder, auto=AutoModelForMaskedLM):
    """Load a model whose parameters all have values, or return the error that says why not."""
    try:
        found = auto.from_pretrained(folder)
    except HFError as error:
        return error
    assert not any(parameter.is_meta for parameter in found.parameters())
    return found


def test_a_changed_config_gives_an_error_that_names_it_or_a_whole_model(model, fuzz):
    path = model / "config.json"
    before = path.read_bytes()
    config = {**json.loads(before), **FAMILIES[model.name]}

    def check(rng):
        changed = dict(config)
        for _ in range(rng.randrange(1, 3)):
            changed[rng.choice([*config, "num_labels", "problem_type", "is_decoder"])] = rng.choice(VALUES)
        path.write_text(json.dumps(changed))
        found = load(model, rng.choice([AutoModelForMaskedLM, AutoModel, AutoModelForQuestionAnswering]))
        if isinstance(found, HFError):
            assert "config" in str(found) or "safetensors" in str(found)

    try:
        fuzz(check)
    finally:
        path.write_bytes(before)


def test_truncated_weights_are_an_error_that_names_the_file(model, fuzz):
    path = model / "model.safetensors"
    content = path.read_bytes()

    def check(rng):
        path.write_bytes(content[: rng.randrange(len(content))])
        found = load(model)
        assert isinstance(found, HFError)
        assert "model.safetensors" in str(found)

    try:
        fuzz(check)
    finally:
        path.write_bytes(content)


def test_a_tensor_that_does_not_fit_is_named_with_its_file(model, fuzz):
    path = model / "model.safetensors"
    content = path.read_bytes()
    tensors = load_file(path)

    def check(rng: random.Random):
        key = rng.choice(sorted(tensors))
        value = tensors[key]
        wrong = rng.choice(
            [
                torch.cat([value, value]),
                value[:-1],
                value[None],
                value.flatten()[:0],
                torch.zeros(()),
                value.to(torch.int64),
            ]
        )
        save_file({**tensors, key: wrong.clone().contiguous()}, path)
        found = load(model)
        assert isinstance(found, HFError), f"{key} was loaded from a tensor of shape {tuple(wrong.shape)}"
        assert key in str(found)
        assert "model.safetensors" in str(found)

    try:
        fuzz(check)
    finally:
        path.write_bytes(content)


def test_a_missing_tensor_is_in_the_report_or_an_error(model, fuzz):
    path = model / "model.safetensors"
    content = path.read_bytes()
    tensors = load_file(path)

    def check(rng):
        key = rng.choice(sorted(tensors))
        save_file({name: value for name, value in tensors.items() if name != key}, path)
        found = load(model)
        missing = str(found) if isinstance(found, HFError) else " ".join(found.load_report.missing)
        assert key in missing

    try:
        fuzz(check)
    finally:
        path.write_bytes(content)
