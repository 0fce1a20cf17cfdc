"""Files that are not checkpoints are named for what they are."""

import io

import numpy as np
import pytest
import torch

from flodl.checkpoint import checkpoint_keys, load_checkpoint
from flodl.core import CheckpointError, DamagedError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"epoch 1 loss 0.5\n" * 9, r"is text that starts with 'epoch 1 ', not a checkpoint"),
        (b'{"weight_map": {}}', "is text that starts with"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html></html>", r"is a web page, .* the download failed"),
        (b"\x93NUMPY\x01\x00v\x00", "is a NumPy array"),
        (b"GGUF\x03\0\0\0", "is a GGUF file"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, content, message):
    (tmp_path / "model.fdl").write_bytes(content)
    with pytest.raises(DamagedError, match=message):
        load_checkpoint(tmp_path / "model.fdl", {"w": torch.zeros(2)})
    with pytest.raises(DamagedError, match=message):
        checkpoint_keys(tmp_path / "model.fdl")


def test_a_stream_at_its_end_has_to_be_rewound():
    with pytest.raises(DamagedError, match=r"the stream is empty, or at its end: call seek\(0\) first"):
        load_checkpoint(io.BytesIO(), {"w": torch.zeros(2)})


def test_an_archive_of_other_files_is_named(tmp_path):
    np.savez(tmp_path / "model.npz", w=np.ones(2))
    with pytest.raises(CheckpointError, match=r"torch.save did not write: it contains 'w\.npy'"):
        load_checkpoint(tmp_path / "model.npz", {"w": torch.zeros(2)})
