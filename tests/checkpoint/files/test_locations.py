"""Paths that are not those of a checkpoint: the error names the file to pass instead."""

import pytest
import torch

from flodl.checkpoint import checkpoint_keys, load_checkpoint, read_checkpoint, save_bundle, save_checkpoint
from flodl.core import CheckpointError


def error_of(path):
    messages = set()
    for read in (checkpoint_keys, read_checkpoint, lambda path: load_checkpoint(path, {"w": torch.zeros(2)})):
        with pytest.raises(CheckpointError) as caught:
            read(path)
        messages.add(str(caught.value))
    (message,) = messages
    return message


def test_the_folder_of_a_bundle_or_of_a_run_names_the_file_of_the_model(tmp_path):
    bundle = save_bundle(
        tmp_path / "run" / "bundles", 7, {"model": {"w": torch.ones(2)}, "data": {"epoch": 1}}
    )
    assert f"It is a bundle. Load its model, '{bundle}/model.fdl'" in error_of(bundle)
    for folder in (bundle.parent, bundle.parent.parent):
        message = error_of(folder)
        assert f"such as '{bundle}/model.fdl'" in message
        assert f"read_bundle(latest_bundle('{bundle.parent}'))" in message


def test_a_file_that_is_in_the_bundles_of_a_run_is_found_there(tmp_path):
    parts = {"model": {"w": torch.ones(2)}, "data": {"epoch": 1}}
    for step in (7, 9):
        bundle = save_bundle(tmp_path / "run" / "bundles", step, parts)
    for folder in (bundle.parent, bundle.parent.parent):
        message = error_of(folder / "model.fdl")
        assert f"its files are stored in bundles. Load '{bundle}/model.fdl' from the latest" in message
        assert "bundles" not in error_of(folder / "weights.fdl").replace(str(folder), "")


def test_another_folder_names_a_file_in_it(tmp_path):
    assert error_of(tmp_path).endswith("Is a directory. Pass a file that save_checkpoint wrote.")
    save_checkpoint(tmp_path / "best.safetensors", {"w": torch.ones(2)})
    assert error_of(tmp_path).endswith(f"Pass a file in it, such as '{tmp_path}/best.safetensors'.")


def test_a_missing_file_suggests_one_with_a_similar_name(tmp_path):
    save_checkpoint(tmp_path / "model.fdl", {"w": torch.ones(2)})
    assert error_of(tmp_path / "modle.fdl").endswith(f"Did you mean '{tmp_path}/model.fdl'?")


@pytest.mark.parametrize("name", ["model.json", "model.npz", "model.PKL", "model.onnx.gz"])
def test_the_suffix_of_another_format_is_rejected(tmp_path, name):
    with pytest.raises(CheckpointError, match=r"suffix of another format.*Write 'model\.fdl'"):
        save_checkpoint(tmp_path / name, {"w": torch.ones(2)})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_suggests_only_checkpoints_with_a_similar_name(tmp_path):
    for name in ("model.fdl", "encoder-step.100.safetensors", "tt.csv", "notes.txt"):
        (tmp_path / name).touch()
    for missing in ("t.csv", "t.fdl", "note.txt"):
        assert error_of(tmp_path / missing).endswith("Pass a file that save_checkpoint wrote.")
    assert error_of(tmp_path / "model.pt").endswith(f"Did you mean '{tmp_path}/model.fdl'?")
    assert "encoder-step.100.safetensors" in error_of(tmp_path / "encoder_step.100.safetensors")
