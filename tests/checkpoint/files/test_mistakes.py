"""Mistakes in loading that would otherwise pass unnoticed, or whose error would mislead."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flodl import FlowBuilder, load_checkpoint, save_checkpoint
from flodl.core import CheckpointError, DamagedError


def build():
    return FlowBuilder(nn.Linear(4, 8)).tag("body").through(nn.Linear(8, 2)).tag("head").build()


def test_values_that_become_zero_in_the_type_of_the_model_are_reported(tmp_path, capsys):
    save_checkpoint(tmp_path / "m.fdl", {"a.w": torch.tensor([1e-9, 0.0, 1.0, -2e-9]), "b": torch.ones(2)})
    model = {"a.w": torch.zeros(4, dtype=torch.float16), "b": torch.zeros(2, dtype=torch.float16)}
    load_checkpoint(tmp_path / "m.fdl", model)
    assert "loaded as 0: 2 of 3 values of 'a.w' (torch.float16). Convert" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_ordinary_weights_are_converted_without_a_warning(tmp_path, capsys, dtype):
    torch.manual_seed(0)
    weights = torch.randn(100_000) * 0.02
    weights[:5] = 1e-12  # a few tiny values are normal
    save_checkpoint(tmp_path / "m.fdl", {"w": weights, "zero": torch.zeros(3)})
    load_checkpoint(tmp_path / "m.fdl", {"w": torch.zeros(100_000, dtype=dtype), "zero": torch.ones(3)})
    assert capsys.readouterr().err == ""


def test_a_flipped_bit_in_a_name_is_reported_as_damage(tmp_path):
    build().save_checkpoint(tmp_path / "m.fdl")
    data = bytearray((tmp_path / "m.fdl").read_bytes())
    data[data.index(b"body.weight") + 3] ^= 1
    (tmp_path / "m.fdl").write_bytes(data)
    with pytest.raises(DamagedError, match="its checksum differs"):
        build().load_checkpoint(tmp_path / "m.fdl")


def test_one_renamed_tensor_is_recognized_by_its_shape(tmp_path):
    tensors = dict(build().state_dict())
    tensors["bodx.weight"] = tensors.pop("body.weight")
    save_checkpoint(tmp_path / "m.fdl", tensors)
    save_file(tensors, tmp_path / "m.safetensors")
    renamed = (
        r"has 'bodx\.weight' where the model has 'body\.weight', both of shape \(8, 4\).*migrate_checkpoint"
    )
    with pytest.raises(CheckpointError, match=renamed) as caught:
        build().load_checkpoint(tmp_path / "m.fdl")
    assert "damaged" not in str(caught.value)
    with pytest.raises(CheckpointError, match=renamed + r".*may be damaged"):
        build().load_checkpoint(tmp_path / "m.safetensors")
    report = build().load_checkpoint(tmp_path / "m.fdl", allow_missing="body.*", allow_unexpected="bodx.*")
    assert report.skipped == ("bodx.weight",)


def test_a_pattern_that_matches_no_name_is_reported(tmp_path, capsys):
    build().save_checkpoint(tmp_path / "m.fdl")
    build().load_checkpoint(tmp_path / "m.fdl", allow_missing=["head.*", "hed.*"], allow_unexpected="old.*")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "allow_missing has 'hed.*', which matches no name of the model" in lines[0]
    assert lines[0].endswith("Did you mean 'head'?")
    assert "allow_unexpected has 'old.*', which matches no name of" in lines[1]


def test_patterns_that_permit_more_than_is_needed_are_not_reported(tmp_path, capsys):
    build().save_checkpoint(tmp_path / "m.fdl")
    build().load_checkpoint(tmp_path / "m.fdl", allow_missing=["head.*", "*"], allow_unexpected=["body.bias"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"alow_missing": ["head.*"]}, "Did you mean 'allow_missing'?"),
        ({"strict": False}, "allow_unexpected=['*']"),
        ({"map_location": "cpu"}, "Leave it out"),
    ],
)
def test_an_unknown_keyword_is_named_with_a_suggestion(tmp_path, options, hint):
    build().save_checkpoint(tmp_path / "m.fdl")
    for load in (
        build().load_checkpoint,
        lambda path, **kw: load_checkpoint(path, build().state_dict(), **kw),
    ):
        with pytest.raises(CheckpointError) as caught:
            load(tmp_path / "m.fdl", **options)
        assert f"load_checkpoint has no argument {next(iter(options))!r}" in str(caught.value)
        assert hint in str(caught.value)


def test_a_type_error_inside_of_a_load_keeps_its_traceback(tmp_path):
    class Broken(dict):
        def __iter__(self):
            raise TypeError("got an unexpected keyword argument 'mine'")

    with pytest.raises(TypeError, match="'mine'"):
        save_checkpoint(tmp_path / "m.fdl", Broken())


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "float8_e4m3fn", "float8_e8m0fnu", "complex64", "int8"])
def test_unusual_types_that_stay_the_same_are_loaded_without_a_warning(tmp_path, capsys, name):
    dtype = getattr(torch, name)
    tensor = torch.full((4,), 56, dtype=torch.uint8)
    stored = tensor.to(dtype) if name in ("complex64", "int8") else tensor.view(dtype)
    save_checkpoint(tmp_path / "m.fdl", {"w": stored})
    assert load_checkpoint(tmp_path / "m.fdl", {"w": torch.empty_like(stored)}).retyped == ()
    assert capsys.readouterr().err == ""


def test_arguments_in_the_wrong_order_are_an_error_with_the_call_that_was_meant():
    tensors = {"weight": torch.zeros(1)}
    for call in (save_checkpoint, load_checkpoint):
        with pytest.raises(CheckpointError, match=rf"Pass the path first, .* {call.__name__}\('model.fdl'"):
            call(tensors, "model.fdl")


def test_an_optimizer_in_place_of_a_model_is_explained(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    save_checkpoint(tmp_path / "m.fdl", model.state_dict())
    for call in (save_checkpoint, load_checkpoint):
        with pytest.raises(CheckpointError, match=r"this is an optimizer \(AdamW\).*model\.state_dict\(\)"):
            call(tmp_path / "m.fdl", optimizer)
        with pytest.raises(CheckpointError, match="this is the state of an optimizer"):
            call(tmp_path / "m.fdl", optimizer.state_dict())
        with pytest.raises(CheckpointError, match="this is an optimizer"):
            call(optimizer, tmp_path / "m.fdl")
