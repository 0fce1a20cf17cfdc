"""Migration: renames first, equal names next, shapes last; the report lists every name."""

import io

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import migrate_checkpoint, read_checkpoint, save_checkpoint
from flodl.core import CheckpointError


def filled(**shapes):
    return {name: torch.full(shape, float(k)) for k, (name, shape) in enumerate(shapes.items(), start=1)}


def test_equal_shapes_are_matched_in_file_order(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(same=(2,), x=(3,), y=(3,), z=(4,), left=(9,)))
    model = filled(a=(3,), same=(2,), b=(3,), c=(4,), d=(5,))
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model)
    assert report.unchanged == ("same",)
    assert report.remapped == (("x", "a"), ("y", "b"), ("z", "c"))
    assert (report.dropped, report.missing) == (("left",), ("d",))
    assert not report.is_complete
    expected = "1 unchanged, 3 remapped (x → a, y → b, z → c), 1 dropped (left), 1 missing (d)"
    assert str(report) == f"{expected}, 2 guessed by order (a, b)"
    tensors, _ = read_checkpoint(tmp_path / "new.fdl")
    assert {name: tensor[0].item() for name, tensor in tensors.items()} == {"a": 2, "same": 1, "b": 3, "c": 4}
    assert list(tensors) == ["a", "same", "b", "c"]


def test_a_weight_is_never_taken_for_a_bias(tmp_path):
    old = filled(**{"ln.bias": (4,), "ln.weight": (4,), "other.bias": (4,)})
    save_checkpoint(tmp_path / "old.fdl", old)
    model = filled(**{"norm.weight": (4,), "norm.bias": (4,), "extra.weight": (4,)})
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model)
    assert report.remapped == (("ln.weight", "norm.weight"), ("ln.bias", "norm.bias"))
    assert (report.missing, report.dropped) == (("extra.weight",), ("other.bias",))


def test_gamma_and_beta_are_weight_and_bias(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(**{"n/beta": (4,), "n/gamma": (4,)}))
    model = filled(**{"norm.weight": (4,), "norm.bias": (4,)})
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model)
    assert report.remapped == (("n/gamma", "norm.weight"), ("n/beta", "norm.bias"))
    assert not report.guessed


def test_names_that_took_the_first_of_several_tensors_are_reported(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(**{"a.weight": (2,), "b.weight": (2,), "c.weight": (3,)}))
    model = filled(**{"x.weight": (2,), "y.weight": (3,)})
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model)
    assert report.guessed == ("x.weight",)
    assert "1 guessed by order (x.weight)" in str(report)


def test_names_that_only_the_order_decided_are_reported(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(**{f"attn.{name}.weight": (2,) for name in "qkv"}))
    model = filled(**{f"attention.{name}.weight": (2,) for name in ("key", "query", "value")})
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model)
    assert report.guessed == tuple(model)
    rename = {"attn.q": "attention.query", "attn.k": "attention.key"}
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model, rename=rename)
    assert not report.guessed


def test_names_with_evidence_for_their_order_are_not_guessed(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(**{f"layers.{number}.weight": (2,) for number in range(12)}))
    model = filled(**{f"encoder.block_{number}.weight": (2,) for number in range(12)})
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model)
    assert (len(report.remapped), report.guessed) == (12, ())


def test_a_different_dtype_matches_by_name_but_not_by_shape():
    stream, new = io.BytesIO(), io.BytesIO()
    save_checkpoint(stream, {"x": torch.zeros(2).half(), "same": torch.zeros(3).half()})
    stream.seek(0)
    report = migrate_checkpoint(stream, new, {"y": torch.zeros(2), "same": torch.zeros(3)})
    assert (report.unchanged, report.missing) == (("same",), ("y",))


def test_rename_comes_before_matching_by_shape(tmp_path):
    old = filled(**{"enc.0.w": (2,), "enc.1.w": (2,), "enc.head.w": (2,), "fc": (2,)})
    save_checkpoint(tmp_path / "old.fdl", old)
    model = filled(**{"top.w": (2,), "body.0.w": (2,), "body.1.w": (2,), "out": (2,)})
    report = migrate_checkpoint(
        tmp_path / "old.fdl",
        tmp_path / "new.fdl",
        model,
        rename={"enc": "body", "enc.head": "top", "fc": "out"},
    )
    assert report.is_complete
    tensors, _ = read_checkpoint(tmp_path / "new.fdl")
    assert {name: tensor[0].item() for name, tensor in tensors.items()} == {
        "top.w": 3, "body.0.w": 1, "body.1.w": 2, "out": 4,
    }  # fmt: skip


def test_a_function_may_rename(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(**{"module.w": (2,), "module.b": (2,)}))
    report = migrate_checkpoint(
        tmp_path / "old.fdl",
        tmp_path / "new.fdl",
        filled(w=(2,), b=(2,)),
        rename=lambda name: name.removeprefix("module."),
        by_shape=False,
    )
    assert report.remapped == (("module.w", "w"), ("module.b", "b"))


def test_without_by_shape_only_names_match(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(x=(2,)))
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", filled(y=(2,)), by_shape=False)
    assert (report.dropped, report.missing) == (("x",), ("y",))


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"x": "z"}, r"rename turns 'x' into 'z', which the model lacks\. The names here are 'a', 'b'"),
        ({"xx": "a"}, r"rename has 'xx', which '.*old.fdl' lacks"),
        ({"x": "a", "y": "a"}, r"rename turns both 'x' and 'y' into 'a'"),
        ({"x": "b"}, r"at 'b': .* has 'x' of shape \(2,\), the model \(3,\)"),
    ],
)
def test_a_wrong_rename_raises_and_writes_nothing(tmp_path, rename, message):
    save_checkpoint(tmp_path / "old.fdl", filled(x=(2,), y=(2,)))
    with pytest.raises(CheckpointError, match=message):
        migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", filled(a=(2,), b=(3,)), rename=rename)
    assert [path.name for path in tmp_path.iterdir()] == ["old.fdl"]


def test_source_and_target_must_differ(tmp_path):
    save_checkpoint(tmp_path / "old.fdl", filled(x=(2,)))
    (tmp_path / "link.fdl").symlink_to(tmp_path / "old.fdl")
    before = (tmp_path / "old.fdl").read_bytes()
    for target in ("old.fdl", "link.fdl"):
        with pytest.raises(CheckpointError, match="source and target are both"):
            migrate_checkpoint(tmp_path / "old.fdl", tmp_path / target, filled(y=(2,)))
    assert (tmp_path / "old.fdl").read_bytes() == before


def test_a_model_whose_node_got_a_tag_loads_after_migration(tmp_path):
    old = FlowBuilder(nn.Linear(2, 4)).through(nn.Linear(4, 1)).build()
    new = FlowBuilder(nn.Linear(2, 4)).tag("body").through(nn.Linear(4, 1)).tag("head").build()
    old.save_checkpoint(tmp_path / "old.fdl")
    assert migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", new.state_dict()).is_complete
    assert new.load_checkpoint(tmp_path / "new.fdl").is_complete
    assert torch.equal(old(torch.ones(1, 2)), new(torch.ones(1, 2)))


def test_user_metadata_is_kept_and_reported(tmp_path):
    old = FlowBuilder(nn.Linear(2, 2)).build()
    notes = {"author": "someone", "structural_hash": old.structural_hash}
    save_checkpoint(tmp_path / "old.fdl", old.state_dict(), metadata=notes)
    model = FlowBuilder(nn.Linear(2, 2)).tag("only").build()
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", model.state_dict())
    assert report.metadata == ("author",)
    assert str(report).endswith("1 kept in metadata (author)")
    kept = read_checkpoint(tmp_path / "new.fdl")[1]
    assert kept["author"] == "someone"
    # It is the hash of the old model's function.
    assert "structural_hash" not in kept
    assert model.load_checkpoint(tmp_path / "new.fdl").is_complete


def test_dropped_metadata_is_reported(tmp_path):
    tensors = filled(a=(2,))
    save_checkpoint(tmp_path / "old.fdl", tensors, metadata={"author": "someone"})
    report = migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", tensors, format="fdlc")
    assert (report.metadata, report.dropped_metadata) == ((), ("author",))
    assert str(report) == "1 unchanged, 1 dropped from metadata (author)"


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (lambda name: None, "rename returned None for 'a'. It must return a name: the old one if"),
        ({"a": None}, "rename has None for 'a'. Pass the new name or prefix as a string"),
    ],
)
def test_a_rename_that_returns_no_name_raises(tmp_path, rename, message):
    save_checkpoint(tmp_path / "old.fdl", filled(a=(2,)))
    with pytest.raises(CheckpointError, match=message):
        migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", filled(b=(2,)), rename=rename)
    assert not (tmp_path / "new.fdl").exists()


@pytest.mark.parametrize("rename", ["x", "", (), ["a"], [("a", "b")], 3, False, {"a"}])
def test_a_rename_that_is_neither_a_mapping_nor_a_function_raises(tmp_path, rename):
    save_checkpoint(tmp_path / "old.fdl", filled(a=(2,)))
    with pytest.raises(CheckpointError, match="rename must be a dict of old and new names, a function or"):
        migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", filled(b=(2,)), rename=rename)
    with pytest.raises(CheckpointError, match=r"rename has the key 3\. Pass the old name or prefix"):
        migrate_checkpoint(tmp_path / "old.fdl", tmp_path / "new.fdl", filled(b=(2,)), rename={3: "b"})
    assert not (tmp_path / "new.fdl").exists()
