"""Matching a file to a model: names, prefixes, shapes, types, ties and writable tensors."""

import io
import re

import pytest
import torch
from torch import nn

from flodl import load_checkpoint, save_checkpoint
from flodl.checkpoint import migrate_checkpoint
from flodl.core import CheckpointError, DamagedError

from ..tensors import stored

MODEL = {"encoder.weight": torch.zeros(2), "encoder.bias": torch.zeros(1), "head.weight": torch.zeros(2)}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            {"encoder.weight": torch.ones(2), "encoder.bias": torch.ones(1)},
            "the stream lacks 'head.weight'. Nothing was loaded. "
            "If this is intended, pass allow_missing=['head.weight'] or a pattern.",
        ),
        (
            {**MODEL, "haed.weight": torch.ones(2)},
            "the stream has names that the model lacks: 'haed.weight'. "
            "Nothing was loaded. If this is intended, pass allow_unexpected=['haed.weight'] or a pattern.",
        ),
        (
            # Names that are in both are not what was meant.
            {
                "encoder.weight": torch.ones(2),
                "encoder.bias": torch.ones(1),
                "top.weight": torch.ones(2),
                "top.bias": torch.ones(1),
                "top.scale": torch.ones(2),
            },
            "the stream lacks 'head.weight'. Did you mean 'top.weight'? Nothing was loaded. "
            "If this is intended, pass allow_missing=['head.weight'] or a pattern.",
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
        "at 'b': the stream has shape (3,), the model (2,). 1 more name differs. Nothing was loaded. "
        "Build the model with the sizes it was saved with. To load the rest, as for fine-tuning with a "
        "different head, write a file without them: migrate_checkpoint(source, 'new.fdl', "
        "model.state_dict(), by_shape=False), and load 'new.fdl' with allow_missing=['b', 'c']."
    )
    assert not any(tensor.any() for tensor in target.values())


def test_the_advice_for_another_head_loads_everything_else(tmp_path):
    file = {"body.weight": torch.ones(2), "head.weight": torch.ones(3), "head.bias": torch.ones(1)}
    target = {"body.weight": torch.zeros(2), "head.weight": torch.zeros(5), "head.bias": torch.zeros(5)}
    path, new = tmp_path / "old.fdl", tmp_path / "new.fdl"
    save_checkpoint(path, file)
    told = f"migrate_checkpoint({str(path)!r}, 'new.fdl', model.state_dict(), by_shape=False)"
    with pytest.raises(CheckpointError, match=r"with allow_missing=\['head\.\*'\]\.$") as caught:
        load_checkpoint(path, target, allow_missing=["head.*"], allow_unexpected=["head.*"])
    assert told in str(caught.value)
    migrate_checkpoint(path, new, target, by_shape=False)
    assert load_checkpoint(new, target, allow_missing=["head.*"]).loaded == ("body.weight",)
    assert target["body.weight"].all()
    assert not target["head.weight"].any()


def test_a_file_of_which_nothing_fits_is_not_one_with_another_head():
    with pytest.raises(CheckpointError, match=r"with the sizes it was saved with\.$"):
        load_checkpoint(io.BytesIO(stored({"a": torch.ones(3)})), {"a": torch.zeros(2)})


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
