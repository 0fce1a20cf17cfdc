"""Checkpoint files: what can be saved can be loaded, and a mutated file raises or has the original values."""

import contextlib
import gzip
import io
import json
import random

import pytest
import torch
from safetensors import safe_open

from flodl.checkpoint import checkpoint_keys, load_checkpoint, read_checkpoint, save_checkpoint
from flodl.core import CheckpointError

from .mutations import TENSORS, fate, mutate, originals, same_tensors
from .tensors import bits, random_tensors, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def without_overlaps(tensors):
    """Return new tensors of the same types and shapes, tied where those are."""
    new = {id(tensor): torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors}
    for tensor in new.values():
        tensor.reshape(-1).view(torch.uint8).zero_()
    return [new[id(tensor)] for tensor in tensors]


def test_what_can_be_saved_can_be_loaded(fuzz, tmp_path):
    def check(rng: random.Random) -> None:
        tensors = random_tensors(rng)
        suffix = rng.choice([".fdl", ".fdl", ".fdl.gz", ".fdl.zst"])
        path = tmp_path / f"model{suffix}"
        save_checkpoint(path, tensors)
        for source in (path, io.BytesIO(path.read_bytes())):
            back, _ = read_checkpoint(source)
            assert same_bits(back, dict(sorted(tensors.items(), key=lambda item: list(back).index(item[0]))))
            assert sorted(back) == sorted(tensors)
            assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in back.values())
        assert sorted(checkpoint_keys(path)) == sorted(tensors)
        model = dict(zip(tensors, without_overlaps(list(tensors.values()))))
        assert load_checkpoint(path, model).is_complete
        assert same_bits(model, tensors)

    fuzz(check)


def test_a_file_that_can_be_saved_is_readable_by_the_safetensors_library(fuzz, tmp_path):
    def check(rng: random.Random) -> None:
        tensors = random_tensors(rng)
        save_checkpoint(tmp_path / "model.fdl", tensors)
        with safe_open(tmp_path / "model.fdl", "pt") as file:
            metadata = file.metadata() or {}
            aliases = json.loads(metadata.get("flodl_aliases", "{}"))
            converted = json.loads(metadata.get("flodl_dtypes", "{}"))
            assert {*file.keys(), *aliases} == set(tensors)
            for name in set(file.keys()) - set(converted):
                assert bits(file.get_tensor(name)) == bits(tensors[name])

    fuzz(check)


def test_a_mutated_file_raises_or_has_the_original_values(fuzz):
    kinds = {kind: data for kind, data in originals().items() if kind in ("safetensors", "gz", "zst")}

    def check(rng: random.Random) -> None:
        assert fate(mutate(kinds[rng.choice(sorted(kinds))], rng)) != "changed"

    fuzz(check)


def test_a_mutated_file_of_another_program_raises_or_is_read(fuzz):
    """Their formats have no checksum: a changed value is not detected, a changed structure is."""
    kinds = {kind: data for kind, data in originals().items() if kind in ("fdlc", "torch")}

    def check(rng: random.Random) -> None:
        fate(mutate(kinds[rng.choice(sorted(kinds))], rng))

    fuzz(check)


def test_a_mutated_file_on_disk_changes_a_model_completely_or_not_at_all(fuzz, tmp_path):
    kinds, path = originals(), tmp_path / "model.fdl"
    names = [name for name in TENSORS if name != "complex"]

    def check(rng: random.Random) -> None:
        path.write_bytes(mutate(kinds[rng.choice(sorted(kinds))], rng))
        model = {name: torch.full_like(TENSORS[name], 7) for name in names}
        before = {name: tensor.clone() for name, tensor in model.items()}
        versions = [tensor._version for tensor in model.values()]
        try:
            load_checkpoint(path, model, allow_unexpected=["**"])
        except CheckpointError:
            assert [tensor._version for tensor in model.values()] == versions
            assert same_tensors(model, before)
        for read in (checkpoint_keys, read_checkpoint):
            with contextlib.suppress(CheckpointError):
                read(path)

    fuzz(check)


def test_most_mutations_are_detected():
    kinds = {kind: data for kind, data in originals().items() if kind in ("safetensors", "gz")}
    rng = random.Random(0)
    fates = [fate(mutate(kinds[rng.choice(sorted(kinds))], rng)) for _ in range(300)]
    assert fates.count("refused") > 290


def test_the_original_files_are_valid():
    assert fate(originals()["safetensors"]) == "the same"
    assert fate(gzip.compress(originals()["safetensors"])) == "the same"
    assert torch.equal(read_checkpoint(io.BytesIO(originals()["fdlc"]))[0]["count"], torch.tensor(3))
