"""Checkpoints: atomic, loaded all or none, strict names unless a pattern allows differences."""

import io
import json
import os
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flodl import FlowBuilder, load_checkpoint, save_checkpoint
from flodl.checkpoint import checkpoint_keys, migrate_checkpoint, read_checkpoint
from flodl.core import CheckpointError, DamagedError

TIED = torch.arange(6.0).reshape(2, 3)
TENSORS = {
    "plain": torch.randn(3, 4),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 5),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "strided": torch.arange(20.0)[::3],
    "expanded": torch.ones(1, 4).expand(3, 4),
    "sliced": torch.arange(100.0)[10:20],
    "double": torch.randn(2, dtype=torch.float64),
    "half": torch.randn(2).half(),
    "bf16": torch.randn(2).bfloat16(),
    "int64": torch.tensor([1, -(2**60)]),
    "int32": torch.tensor([3, 4], dtype=torch.int32),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "first.of.tied": TIED,
    "second.of.tied": TIED,
    "view.of.tied": TIED.t(),
    "name with spaces, ünicode": torch.ones(1),
}


def like(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def stored(tensors: dict[str, Tensor], **options) -> bytes:
    stream = io.BytesIO()
    save_checkpoint(stream, tensors, **options)
    return stream.getvalue()


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


def test_the_file_is_a_safetensors_file_that_others_can_read(tmp_path):
    save_checkpoint(tmp_path / "m.fdl", {"a": TIED}, metadata={"epoch": "3"})
    assert torch.equal(load_file(tmp_path / "m.fdl")["a"], TIED)
    _, metadata = read_checkpoint(tmp_path / "m.fdl")
    assert (metadata["epoch"], metadata["flodl_format"]) == ("3", "1")


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


def test_a_file_truncated_anywhere_raises():
    data = stored({"a": torch.ones(3), "b": torch.ones(2)})
    target = {"a": torch.zeros(3), "b": torch.zeros(2)}
    for length in range(len(data)):
        with pytest.raises(
            CheckpointError, match=r"is not a complete checkpoint: .* Use an earlier checkpoint"
        ):
            load_checkpoint(io.BytesIO(data[:length]), target)
    assert not any(tensor.any() for tensor in target.values())
    load_checkpoint(io.BytesIO(data), target)
    assert all(tensor.all() for tensor in target.values())


def with_header(header: object, body: bytes = b"", *, claims: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if claims is None else claims) + text + body


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES = {
    "a huge header": with_header({"a": ENTRY}, bytes(8), claims=2**63),
    "no JSON": with_header(b"not json", bytes(8)),
    "broken UTF-8": with_header(b"\xff\xfe{}", bytes(8)),
    "a list": with_header([1, 2]),
    "a number": with_header(7),
    "nested too deep": with_header(b"[" * 100_000),
    "too few bytes": with_header({"a": ENTRY}, bytes(4)),
    "too many bytes": with_header({"a": ENTRY}, bytes(12)),
    "another shape": with_header({"a": {**ENTRY, "shape": [3]}}, bytes(8)),
    "a negative shape": with_header({"a": {**ENTRY, "shape": [-2]}}, bytes(8)),
    "an unknown dtype": with_header({"a": {**ENTRY, "dtype": "Q9"}}, bytes(8)),
    "offsets beyond the end": with_header({"a": {**ENTRY, "data_offsets": [8, 16]}}, bytes(8)),
    "metadata of another kind": with_header({"__metadata__": [], "a": ENTRY}, bytes(8)),
    "aliases of nothing": with_header(
        {"__metadata__": {"flodl_aliases": '{"b": "nothing"}'}, "a": ENTRY}, bytes(8)
    ),
    "aliases of another kind": with_header({"__metadata__": {"flodl_aliases": "[1]"}, "a": ENTRY}, bytes(8)),
    "aliases that are no JSON": with_header({"__metadata__": {"flodl_aliases": "{"}, "a": ENTRY}, bytes(8)),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "a pickle": b"\x80\x04\x95" + bytes(64),
    "text": b"epoch 1 loss 0.5\n" * 9,
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_an_inconsistent_file_raises(data, tmp_path):
    (tmp_path / "lies.fdl").write_bytes(data)
    for source in (tmp_path / "lies.fdl", io.BytesIO(data)):
        with pytest.raises(CheckpointError, match="is not a complete checkpoint"):
            load_checkpoint(source, {"a": torch.zeros(2)})


def test_a_missing_file_raises(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path / "none.fdl")
    assert str(caught.value) == (
        f"cannot read '{tmp_path}/none.fdl': No such file or directory. "
        "Pass a file that save_checkpoint wrote."
    )
    with pytest.raises(CheckpointError, match=r"cannot read .* directory"):
        read_checkpoint(tmp_path)


MODEL = {"encoder.weight": torch.zeros(2), "encoder.bias": torch.zeros(1), "head.weight": torch.zeros(2)}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            {"encoder.weight": torch.ones(2), "encoder.bias": torch.ones(1)},
            "the stream lacks 'head.weight'. Did you mean 'encoder.weight'? Nothing was loaded. "
            "If this is intended, pass allow_missing=['head.weight'] or a pattern.",
        ),
        (
            {**MODEL, "haed.weight": torch.ones(2)},
            "the stream has names that the model lacks: 'haed.weight'. "
            "Did you mean 'head.weight' or 'encoder.weight'? "
            "Nothing was loaded. If this is intended, pass allow_unexpected=['haed.weight'] or a pattern.",
        ),
        (
            {f"x{k}": torch.ones(1) for k in range(9)},
            "the stream lacks 'encoder.weight', 'encoder.bias', 'head.weight'. The names here are 'x0', "
            "'x1', 'x2', 'x3', 'x4', 'x5', 'x6', 'x7', 'x8'. Nothing was loaded. "
            "If this is intended, pass allow_missing=['encoder.weight'] or a pattern.",
        ),
    ],
)
def test_different_names_raise_with_the_closest_name(file, message):
    target = {name: tensor.clone() for name, tensor in MODEL.items()}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(io.BytesIO(stored(file)), target)
    assert str(caught.value) == message
    assert not any(tensor.any() for tensor in target.values())


def test_patterns_allow_names_to_differ():
    file = {"encoder.weight": torch.ones(2), "old.a": torch.ones(1), "old.b.c": torch.ones(1)}
    target = {name: tensor.clone() for name, tensor in MODEL.items()}
    report = load_checkpoint(
        io.BytesIO(stored(file)), target, allow_missing=["head.*", "*.bias"], allow_unexpected=["old.**"]
    )
    assert report.loaded == ("encoder.weight",)
    assert report.missing == ("encoder.bias", "head.weight")
    assert report.skipped == ("old.a", "old.b.c")
    assert not report.is_complete
    assert str(report) == "1 loaded, 2 skipped (old.a, old.b.c), 2 missing (encoder.bias, head.weight)"
    # A star at the end matches everything below.
    load_checkpoint(io.BytesIO(stored(file)), target, allow_missing=["*"], allow_unexpected=["old.*"])
    with pytest.raises(CheckpointError, match=r"'old.b.c'"):
        load_checkpoint(io.BytesIO(stored(file)), target, allow_missing=["*"], allow_unexpected=["old.a"])


def test_nothing_changes_when_one_shape_is_wrong():
    target = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}
    file = {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(2, 1)}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(io.BytesIO(stored(file)), target)
    assert str(caught.value) == (
        "at 'b': the stream has shape (3,), the model (2,). 1 more names differ. Nothing was loaded. "
        "Build the model with the sizes it was saved with."
    )
    assert not any(tensor.any() for tensor in target.values())


def test_a_failed_write_raises_and_keeps_the_old_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path / "file" / "m.fdl", {"a": TIED})
    assert str(caught.value).startswith(f"cannot write '{tmp_path}/file/m.fdl': ")
    assert str(caught.value).endswith(
        "An existing file is unchanged. Free some disk space or choose a writable folder."
    )
    save_checkpoint(tmp_path / "m.fdl", {"a": TIED})
    before = (tmp_path / "m.fdl").read_bytes()
    (tmp_path / "taken").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
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


def test_a_part_of_a_file_is_loaded_by_its_prefix(tmp_path):
    file = {"encoder.a.w": torch.ones(2), "encoder.b": torch.ones(1), "encoders.c": torch.ones(1)}
    save_checkpoint(tmp_path / "whole.fdl", file)
    target = {"a.w": torch.zeros(2), "b": torch.zeros(1)}
    for prefix in ("encoder", "encoder."):
        report = load_checkpoint(tmp_path / "whole.fdl", target, prefix=prefix)
        assert (report.loaded, report.is_complete) == (("a.w", "b"), True)
    assert load_checkpoint(tmp_path / "whole.fdl", {"w": torch.zeros(2)}, prefix="encoder.a").is_complete
    with pytest.raises(CheckpointError, match=r"has nothing under 'encodr'\. Did you mean 'encoder'"):
        load_checkpoint(tmp_path / "whole.fdl", target, prefix="encodr")
    with pytest.raises(CheckpointError, match=r"lacks 'a\.w', 'b', but has all of them under 'encoder'\."):
        load_checkpoint(tmp_path / "whole.fdl", target)


def test_floats_are_not_loaded_into_an_integer_tensor():
    target = {"steps": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(CheckpointError, match=r"at 'steps': .* has torch\.float32, the model torch\.int64"):
        load_checkpoint(io.BytesIO(stored({"steps": torch.ones(2)})), target)
    report = load_checkpoint(
        io.BytesIO(stored({"w": torch.ones(2, dtype=torch.int64)})), {"w": torch.zeros(2)}
    )
    assert report.retyped == ("w",)
    assert str(report) == "1 loaded, 1 retyped (w)"


@pytest.mark.parametrize(
    ("value", "kept", "held", "words"),
    [
        (1e300, torch.float64, torch.float32, "1e+300, which torch.float32"),
        (1e6, torch.float32, torch.float16, "1000000.0, which torch.float16"),
        (2**40, torch.int64, torch.int32, "1099511627776, which torch.int32"),
        (-1, torch.int64, torch.uint8, "-1, which torch.uint8"),
        (-1, torch.int64, torch.uint64, "-1, which torch.uint64"),
        (2**30, torch.int64, torch.float16, "which torch.float16"),
        (1e6, torch.float32, torch.float8_e5m2, "which torch.float8_e5m2"),
    ],
)
def test_a_value_out_of_range_raises_and_nothing_changes(value, kept, held, words):
    file = io.BytesIO(stored({"a": torch.ones(2), "b": torch.tensor([1, value], dtype=kept)}))
    target = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=held)}
    with pytest.raises(
        CheckpointError, match=rf"at 'b': .*{re.escape(words)} cannot represent\. Nothing was loaded"
    ):
        load_checkpoint(file, target)
    assert not any(tensor.float().any() for tensor in target.values())


def test_infinite_values_and_small_ones_are_cast_to_the_model():
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, 65504.0])
    target = {"a": torch.zeros(4, dtype=torch.float16), "n": torch.zeros(1, dtype=torch.uint8)}
    load_checkpoint(io.BytesIO(stored({"a": values, "n": torch.tensor([255])})), target)
    assert torch.equal(target["a"].nan_to_num(7.0), values.half().nan_to_num(7.0))
    assert target["n"].item() == 255


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


def test_files_of_the_safetensors_library_are_read(tmp_path):
    tensors = {name: tensor.contiguous() for name, tensor in TENSORS.items() if "tied" not in name}
    save_file(tensors, tmp_path / "theirs.safetensors", {"epoch": "3"})
    back, metadata = read_checkpoint(tmp_path / "theirs.safetensors")
    assert equal(back, dict(sorted(tensors.items(), key=lambda item: list(back).index(item[0]))))
    assert metadata == {"epoch": "3"}


def test_changing_a_tensor_does_not_change_the_file(tmp_path):
    save_checkpoint(tmp_path / "w.fdl", {"w": torch.zeros(2)})
    tensors, _ = read_checkpoint(tmp_path / "w.fdl")
    tensors["w"] += 1
    assert not read_checkpoint(tmp_path / "w.fdl")[0]["w"].any()
    save_checkpoint(tmp_path / "w.fdl", tensors)
    assert read_checkpoint(tmp_path / "w.fdl")[0]["w"].all()


def test_one_pattern_may_be_a_plain_string(tmp_path):
    save_checkpoint(tmp_path / "w.fdl", {"w": torch.zeros(2)})
    report = load_checkpoint(
        tmp_path / "w.fdl", {"w": torch.zeros(2), "extra.w": torch.zeros(1)}, allow_missing="extra.*"
    )
    assert report.missing == ("extra.w",)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"allow_missing": True}, "allow_missing=True. Pass a list of names"),
        ({"allow_unexpected": True}, "allow_unexpected=True. Pass a list of names"),
        ({"allow_missing": None}, "allow_missing=None"),
        ({"allow_missing": [3]}, r"allow_missing=\[3\]"),
        ({"prefix": 3}, "prefix=3. Pass the beginning of the names"),
    ],
)
def test_a_wrong_argument_is_not_reported_as_a_damaged_file(given, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(io.BytesIO(stored({"a": torch.ones(2)})), {"a": torch.zeros(2)}, **given)
    assert not isinstance(caught.value, DamagedError)


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


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_unequal_values_for_tied_names_raise():
    model = Tied()
    before = model.embed.weight.detach().clone()
    file = {"embed.weight": torch.zeros(4, 3), "head.weight": torch.ones(4, 3)}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(io.BytesIO(stored(file)), model.state_dict())
    assert str(caught.value) == (
        "at 'head.weight': the stream has different values for it and for 'embed.weight', but the model ties "
        "the two. Nothing was loaded. Build the model without tying them, or make them equal in the file."
    )
    assert torch.equal(model.embed.weight, before)


@pytest.mark.parametrize("value", [2.0, float("nan")])
def test_equal_values_for_tied_names_are_loaded(value):
    model = Tied()
    file = {"embed.weight": torch.full((4, 3), value), "head.weight": torch.full((4, 3), value)}
    assert load_checkpoint(io.BytesIO(stored(file)), model.state_dict()).is_complete
    torch.testing.assert_close(model.head.weight.detach(), file["head.weight"], equal_nan=True)


def test_values_of_tied_names_are_equal_only_bit_for_bit():
    file = {"embed.weight": torch.zeros(4, 3), "head.weight": -torch.zeros(4, 3)}
    with pytest.raises(CheckpointError, match="the model ties the two"):
        load_checkpoint(io.BytesIO(stored(file)), Tied().state_dict())


def test_values_of_tied_names_are_compared_in_the_dtype_of_the_model():
    file = {"embed.weight": torch.ones(4, 3), "head.weight": torch.ones(4, 3, dtype=torch.float64)}
    assert load_checkpoint(io.BytesIO(stored(file)), Tied().state_dict()).retyped == ("head.weight",)


@pytest.mark.parametrize("format", ["safetensors", "fdlc"])
def test_a_tensor_cannot_have_the_name_of_the_metadata(tmp_path, format):
    with pytest.raises(CheckpointError, match="'__metadata__' is the key of a file's metadata"):
        save_checkpoint(tmp_path / "a.fdl", {"__metadata__": torch.ones(2)}, format=format)
    assert not list(tmp_path.iterdir())
    save_checkpoint(tmp_path / "a.fdl", {"part.__metadata__": torch.ones(2)}, format=format)
    assert list(read_checkpoint(tmp_path / "a.fdl")[0]) == ["part.__metadata__"]


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.zeros(2)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (made_in_inference_mode(), "at 'b': the tensor was created in inference mode"),
        (torch.zeros(1).expand(2), r"at 'b': several elements .*Pass tensor\.clone"),
        (torch.zeros(2).to_sparse(), "at 'b': the tensor is sparse_coo"),
        (0.0, "at 'b': the value is a float"),
    ],
)
def test_nothing_changes_when_one_tensor_cannot_be_written_to(last, message):
    file = io.BytesIO(stored({"a": torch.ones(2), "b": torch.ones(2)}))
    first = torch.zeros(2)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(file, {"a": first, "b": last})
    assert first.tolist() == [0, 0]


def test_inference_tensors_are_loaded_in_inference_mode():
    target = made_in_inference_mode()
    with torch.inference_mode():
        load_checkpoint(io.BytesIO(stored({"a": torch.ones(2)})), {"a": target})
    assert target.tolist() == [1, 1]


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
