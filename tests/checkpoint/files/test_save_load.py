"""Checkpoints: atomic, loaded all or none, strict names unless a pattern allows differences."""

import io
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, load_checkpoint, save_checkpoint
from flodl.checkpoint import checkpoint_keys, migrate_checkpoint, read_checkpoint
from flodl.core import CheckpointError

from ..tensors import TENSORS, TIED, equal, like, stored


def test_every_kind_of_tensor_is_restored_from_a_path_and_a_stream(tmp_path):
    save_checkpoint(tmp_path / "all.fdl", TENSORS)
    for source in (tmp_path / "all.fdl", str(tmp_path / "all.fdl"), io.BytesIO(stored(TENSORS))):
        target = like(TENSORS)
        report = load_checkpoint(source, target)
        assert equal(target, TENSORS)
        assert report.is_complete
        assert report.loaded == tuple(TENSORS)


def test_saving_does_not_change_the_tensors():
    before = {name: (tensor.clone(), tensor.stride()) for name, tensor in TENSORS.items()}
    stored(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(tensor, before[name][0])
        assert tensor.stride() == before[name][1]


def test_tied_tensors_are_written_once():
    assert len(stored({"a": torch.zeros(1000)})) * 1.5 > len(stored({"a": TIED, "b": TIED}))
    large = torch.randn(1000)
    twice = stored({"a": large, "b": large})
    assert len(twice) < len(stored({"a": large, "b": large.clone()})) - 3000
    tensors, _ = read_checkpoint(io.BytesIO(twice))
    assert tensors["a"] is tensors["b"]


def test_only_the_slice_of_a_large_storage_is_written():
    assert len(stored({"a": torch.zeros(10**6)[:3]})) < 1000


def test_tied_weights_of_a_model_stay_tied():
    shared = nn.Linear(2, 2)
    model = FlowBuilder(shared).through(nn.ReLU()).through(shared).build()
    stream = io.BytesIO()
    model.save_checkpoint(stream)
    with torch.no_grad():
        shared.weight.zero_()
    stream.seek(0)
    assert model.load_checkpoint(stream).is_complete
    assert model.linear_1 is model.linear_2
    assert shared.weight.abs().sum() > 0


def test_values_are_cast_to_the_model(tmp_path):
    target = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.bfloat16)}
    load_checkpoint(io.BytesIO(stored({"a": torch.ones(2), "b": torch.ones(2)})), target)
    assert [tensor.dtype for tensor in target.values()] == [torch.float64, torch.bfloat16]
    assert all((tensor == 1).all() for tensor in target.values())


def test_loading_fills_parameters_in_place_without_history():
    linear = nn.Linear(2, 2)
    weight = linear.weight
    data = stored({name: tensor + 1 for name, tensor in linear.state_dict().items()})
    before = weight.detach().clone()
    load_checkpoint(io.BytesIO(data), dict(linear.named_parameters()))
    assert linear.weight is weight
    assert torch.equal(weight, before + 1)
    assert weight.requires_grad
    assert weight.grad_fn is None


def test_a_missing_file_raises(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path / "none.fdl")
    assert str(caught.value) == (
        f"cannot read '{tmp_path}/none.fdl': No such file or directory. "
        "Pass a file that save_checkpoint wrote."
    )
    with pytest.raises(CheckpointError, match=r"cannot read .* directory"):
        read_checkpoint(tmp_path)


def test_a_failed_write_raises_and_keeps_the_old_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path / "file" / "m.fdl", {"a": TIED})
    assert str(caught.value).startswith(f"cannot write '{tmp_path}/file/m.fdl': ")
    assert str(caught.value).endswith(
        f"'{tmp_path}/file' is a file, not a folder. An existing file is unchanged. Choose another path."
    )
    save_checkpoint(tmp_path / "m.fdl", {"a": TIED})
    before = (tmp_path / "m.fdl").read_bytes()
    (tmp_path / "taken").mkdir()
    with pytest.raises(
        CheckpointError, match=r"cannot write .*it is a folder.* such as '.*/taken/model\.fdl'"
    ):
        save_checkpoint(tmp_path / "taken", {"a": TIED})
    assert (tmp_path / "m.fdl").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["file", "m.fdl", "taken"]


def test_meta_tensors_can_be_neither_saved_nor_loaded():
    empty = {"head.weight": torch.zeros(2, device="meta")}
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(io.BytesIO(), empty)
    assert str(caught.value) == (
        "at 'head.weight': the tensor is on the meta device and has no values to save. "
        "Initialize the model first."
    )
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(io.BytesIO(stored({"head.weight": torch.ones(2)})), empty)
    assert str(caught.value) == (
        "at 'head.weight': the tensor is on the meta device and has no memory. "
        "Move the model to a device first, for example with to_empty(device='cpu')."
    )


def test_the_report_says_whether_the_graph_computes_the_same_function():
    model = FlowBuilder(nn.Linear(2, 2)).through(nn.GELU()).build()
    other = FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).build()
    stream = io.BytesIO()
    model.save_checkpoint(stream)
    reports = []
    for graph in (model, other):
        stream.seek(0)
        reports.append(graph.load_checkpoint(stream))
    assert [report.same_function for report in reports] == [True, False]
    assert str(reports[1]) == "2 loaded, written by a graph that computes a different function"
    plain = load_checkpoint(io.BytesIO(stored(other.state_dict())), other.state_dict())
    assert plain.same_function is None


def test_a_file_of_a_graph_with_another_structure_is_refused_on_request(tmp_path):
    model = FlowBuilder(nn.Linear(2, 2)).through(nn.GELU()).build()
    other = FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).build()
    model.save_checkpoint(tmp_path / "m.fdl")
    before = other.linear_1.weight.clone()
    with pytest.raises(
        CheckpointError,
        match=r"m\.fdl' was written by a graph with a different structure .*Nothing was loaded",
    ):
        other.load_checkpoint(tmp_path / "m.fdl", allow_different_structure=False)
    assert torch.equal(other.linear_1.weight, before)
    assert model.load_checkpoint(tmp_path / "m.fdl", allow_different_structure=False).same_function


def test_a_file_without_a_structural_hash_is_refused_on_request(tmp_path):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    save_checkpoint(tmp_path / "m.fdl", model.state_dict())
    with pytest.raises(CheckpointError, match="has no structural hash for these names"):
        model.load_checkpoint(tmp_path / "m.fdl", allow_different_structure=False)
    with pytest.raises(CheckpointError, match="there is no structural_hash to compare"):
        load_checkpoint(tmp_path / "m.fdl", model.state_dict(), allow_different_structure=False)


def test_batch_statistics_and_learned_first_values_are_saved():
    def build():
        flow = FlowBuilder(nn.BatchNorm1d(2)).through(lambda x, h=None: x if h is None else x + h)
        return flow.using("h", init=nn.Parameter(torch.zeros(2))).tag("h").build()

    trained = build()
    trained(torch.randn(8, 2) + 5)
    stream = io.BytesIO()
    trained.save_checkpoint(stream)
    stream.seek(0)
    fresh = build()
    assert fresh.load_checkpoint(stream).is_complete
    assert torch.equal(fresh.batchnorm1d_1.running_mean, trained.batchnorm1d_1.running_mean)
    assert fresh.batchnorm1d_1.num_batches_tracked == 1
    assert "h_init" in fresh.state_dict()


def test_a_part_is_loaded_through_its_subgraph(tmp_path):
    encoder = FlowBuilder(nn.Linear(2, 2)).label("encoder").build()
    encoder.save_checkpoint(tmp_path / "encoder.fdl")
    model = (
        FlowBuilder(FlowBuilder(nn.Linear(2, 2)).label("encoder").build()).through(nn.Linear(2, 2)).build()
    )
    model.subgraph("encoder").load_checkpoint(tmp_path / "encoder.fdl")
    assert torch.equal(model.encoder.linear_1.weight, encoder.linear_1.weight)


def test_swapped_arguments_raise(tmp_path):
    with pytest.raises(CheckpointError, match="expected a path or a binary stream, got a dict"):
        save_checkpoint({"w": torch.zeros(2)}, tmp_path / "w.fdl")


def test_a_text_stream_raises():
    with pytest.raises(CheckpointError, match=r"this is a text stream\. Open it in binary mode"):
        save_checkpoint(io.StringIO(), {"w": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="this is a text stream"):
        load_checkpoint(io.StringIO(), {"w": torch.zeros(2)})


def test_lazy_parameters_raise():
    lazy = nn.LazyLinear(2).state_dict()
    with pytest.raises(CheckpointError, match=r"the parameter has no shape yet\. Call the model once"):
        save_checkpoint(io.BytesIO(), lazy)
    with pytest.raises(CheckpointError, match="the parameter has no shape yet"):
        load_checkpoint(io.BytesIO(stored({"weight": torch.ones(2, 2), "bias": torch.ones(2)})), lazy)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn])
def test_rare_dtypes_are_restored(dtype):
    tensor = torch.tensor([1.0, 2.0]).to(dtype)
    back, _ = read_checkpoint(io.BytesIO(stored({"t": tensor, "scalar": tensor[0]})))
    assert back["t"].dtype == dtype
    assert torch.equal(back["t"].view(torch.uint8), tensor.view(torch.uint8))
    assert back["scalar"].shape == ()


def test_sparse_tensors_raise_with_advice():
    with pytest.raises(CheckpointError, match=r"at 's': the tensor is sparse_coo; .*to_dense"):
        save_checkpoint(io.BytesIO(), {"s": torch.eye(2).to_sparse()})


def test_changing_a_tensor_does_not_change_the_file(tmp_path):
    save_checkpoint(tmp_path / "w.fdl", {"w": torch.zeros(2)})
    tensors, _ = read_checkpoint(tmp_path / "w.fdl")
    tensors["w"] += 1
    assert not read_checkpoint(tmp_path / "w.fdl")[0]["w"].any()
    save_checkpoint(tmp_path / "w.fdl", tensors)
    assert read_checkpoint(tmp_path / "w.fdl")[0]["w"].all()


def test_a_key_that_is_not_a_string_raises_before_writing(tmp_path):
    with pytest.raises(CheckpointError, match="the key 0 is not a string"):
        save_checkpoint(tmp_path / "m.fdl", {0: torch.ones(2)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.ckpt", "w.bin", "W.PT", "w.pt.gz"])
@pytest.mark.parametrize("format", ["safetensors", "fdlc"])
def test_a_suffix_of_torch_save_raises(tmp_path, name, format):
    with pytest.raises(CheckpointError, match=r"has the suffix of a torch\.save file") as caught:
        save_checkpoint(tmp_path / name, {"w": torch.zeros(2)}, format=format)
    assert str(caught.value).endswith(
        f"Write '{name[0]}.fdl' or '{name[0]}.safetensors', "
        f"or use torch.save(tensors, '{name.removesuffix('.gz')}')."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["w.fdl", "w.safetensors", "w", "w.pt.fdl"])
def test_other_suffixes_are_allowed(tmp_path, name):
    save_checkpoint(tmp_path / name, {"w": torch.zeros(2)})
    assert (tmp_path / name).is_file()


@pytest.mark.parametrize("format", ["safetensors", "fdlc"])
def test_a_tensor_cannot_have_the_name_of_the_metadata(tmp_path, format):
    with pytest.raises(CheckpointError, match="'__metadata__' is the key of a file's metadata"):
        save_checkpoint(tmp_path / "a.fdl", {"__metadata__": torch.ones(2)}, format=format)
    assert not list(tmp_path.iterdir())
    save_checkpoint(tmp_path / "a.fdl", {"part.__metadata__": torch.ones(2)}, format=format)
    assert list(read_checkpoint(tmp_path / "a.fdl")[0]) == ["part.__metadata__"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    path = tmp_path / "a.fdl"
    save_checkpoint(path, {"a": torch.ones(2)})
    path.chmod(0o640)
    (tmp_path / "link.fdl").symlink_to(path)
    for name in ("a.fdl", "link.fdl"):
        save_checkpoint(tmp_path / name, {"a": torch.zeros(2)})
        assert path.stat().st_mode & 0o777 == 0o640


def test_paths_may_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tensors = {"a": torch.ones(2)}
    save_checkpoint("~/a.fdl", tensors)
    migrate_checkpoint(Path("~/a.fdl"), "~/b.fdl", tensors)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.fdl", "b.fdl"]
    assert checkpoint_keys("~/b.fdl") == list(read_checkpoint("~/b.fdl")[0]) == ["a"]
    assert load_checkpoint("~/b.fdl", like(tensors)).is_complete
