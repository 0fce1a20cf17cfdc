"""Bundles: one folder per save, atomic, verified when read."""

import json
import os
import shutil
import stat

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import (
    BackgroundWriter,
    best_bundle,
    clean_bundles,
    damaged_bundles,
    last,
    latest_bundle,
    list_bundles,
    prune_bundles,
    read_bundle,
    read_checkpoint,
    save_bundle,
    verify_bundle,
)
from flodl.checkpoint.durable_files import shared_lock
from flodl.checkpoint.formats.checksum import digest
from flodl.core import CheckpointError, DamagedError, WriteError

from ..states import same


def run_state():
    model = FlowBuilder(nn.Linear(3, 4)).through(nn.BatchNorm1d(4)).through(nn.Linear(4, 1)).build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": {"step": 3, "lr": 0.1},
        "rng": {"torch": torch.get_rng_state()},
        "data": {"epoch": 1, "position": (3, None)},
        "history": {"loss": [1.0, float("nan"), 0.5]},
    }


def test_every_part_is_restored_exactly(tmp_path):
    state = run_state()
    path = save_bundle(tmp_path / "run", 37, state, metrics={"loss": 0.5, "accuracy": torch.tensor(0.25)})
    assert path == tmp_path / "run" / "step-00000037"
    assert same(dict(state["model"]), read_bundle(path)["model"])
    assert same({k: v for k, v in state.items() if k != "model"}, read_bundle(path, parts=list(state)[1:]))
    (bundle,) = list_bundles(tmp_path / "run")
    assert (bundle.step, bundle.metrics) == (37, {"loss": 0.5, "accuracy": 0.25})
    assert bundle.parts == list(state)
    assert bundle.num_bytes == sum(os.path.getsize(path / name) for name in bundle.files)
    assert same(read_bundle(bundle, verify=False), read_bundle(path))


def test_the_weights_of_a_bundle_load_like_any_checkpoint(tmp_path):
    model = FlowBuilder(nn.Linear(3, 4)).build()
    path = save_bundle(tmp_path, 1, {"model": model.state_dict()})
    other = FlowBuilder(nn.Linear(3, 4)).build()
    assert other.load_checkpoint(path / "model.fdl").is_complete
    assert torch.equal(other.linear_1.weight, model.linear_1.weight)


def test_values_without_tensors_are_plain_json(tmp_path):
    path = save_bundle(tmp_path, 1, {"config": {"lr": 0.1, "name": "a run"}})
    assert json.loads((path / "config.json").read_text()) == {"lr": 0.1, "name": "a run"}


@pytest.mark.skipif(os.name != "posix", reason="permissions are of another kind there")
def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = save_bundle(tmp_path, 1, {"model": {"w": torch.ones(1)}})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o640}


def test_a_step_that_is_saved_again_replaces_the_earlier_save(tmp_path):
    for value in (1.0, 2.0, 3.0):
        path = save_bundle(tmp_path, 5, {"model": {"w": torch.tensor(value)}})
    assert os.listdir(tmp_path) == ["step-00000005.3"]
    assert latest_bundle(tmp_path).bundle.path == path
    assert read_bundle(path)["model"]["w"] == 3


def test_an_old_revision_left_by_a_crash_is_deleted_with_its_step(tmp_path):
    for step in (1, 2):
        save_bundle(tmp_path, step, {"data": {"revision": 1}})
        shutil.copytree(tmp_path / f"step-{step:08d}", tmp_path / "copy")
        save_bundle(tmp_path, step, {"data": {"revision": 2}})
        (tmp_path / "copy").rename(tmp_path / f"step-{step:08d}")
    assert [read_bundle(bundle)["data"]["revision"] for bundle in list_bundles(tmp_path)] == [2, 2]
    assert [bundle.step for bundle in prune_bundles(tmp_path, last(1))] == [1]
    assert os.listdir(tmp_path) == ["step-00000002.2"]


def test_the_latest_bundle_has_the_highest_step(tmp_path):
    for step in (99_999_999, 3, 100_000_000):
        save_bundle(tmp_path, step, {"data": {"step": step}})
    assert latest_bundle(tmp_path).bundle.step == 100_000_000
    assert [bundle.step for bundle in list_bundles(tmp_path)] == [3, 99_999_999, 100_000_000]


def test_a_folder_without_bundles(tmp_path):
    assert latest_bundle(tmp_path) == (None, [])
    assert list_bundles(tmp_path) == []
    assert latest_bundle(tmp_path / "none", missing_ok=True) == (None, [])
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot list"):
        list_bundles(tmp_path / "file")


@pytest.mark.parametrize("function", [list_bundles, latest_bundle, lambda root: prune_bundles(root, last(1))])
def test_a_folder_that_cannot_be_that_of_bundles_raises(tmp_path, function):
    with pytest.raises(CheckpointError, match=r"cannot list '.*none': No such file .* missing_ok=True"):
        function(tmp_path / "none")
    bundle = save_bundle(tmp_path / "bundles", 1, {"data": {"epoch": 1}})
    with pytest.raises(
        CheckpointError, match=rf"is a bundle, not a folder of bundles\. .* '{bundle.parent}'"
    ):
        function(bundle)
    with pytest.raises(CheckpointError, match=rf"the bundles of .* are in '{bundle.parent}'"):
        function(tmp_path)


def test_what_latest_bundle_returns_can_be_read(tmp_path):
    assert latest_bundle(tmp_path).bundle is None
    with pytest.raises(CheckpointError, match="latest_bundle found no bundle to read"):
        read_bundle(latest_bundle(tmp_path))
    path = save_bundle(tmp_path, 1, {"data": {"epoch": 1}, "rng": {"seed": 2}})
    verify_bundle(str(path))
    assert read_bundle(latest_bundle(tmp_path)) == {"data": {"epoch": 1}, "rng": {"seed": 2}}
    assert read_bundle(latest_bundle(tmp_path), parts="rng") == {"rng": {"seed": 2}}
    with pytest.raises(CheckpointError, match=rf"contains some\. Pass one of them, such as '{path}'"):
        read_bundle(tmp_path)
    with pytest.raises(CheckpointError, match="got a NoneType"):
        read_bundle(None)
    with pytest.raises(CheckpointError, match=r"is a file, .* load_checkpoint"):
        read_bundle(path / "data.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": [1]}, r"the parts are a list\. Pass a dict"),
        ({"metrics": 0.5}, r"metrics=0\.5\. Pass a dict of numbers"),
        ({"metadata": "mine"}, r"metadata='mine'\. Pass a dict"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(tmp_path, options, message):
    with pytest.raises(CheckpointError, match=message):
        save_bundle(tmp_path, 1, **{"parts": {}, **options})


def cut(path):
    os.truncate(path / "model.fdl", 60)


def flip(path):
    data = bytearray((path / "model.fdl").read_bytes())
    data[-1] ^= 1
    (path / "model.fdl").write_bytes(data)


def change_manifest(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"loss": 0.5', '"loss": 0.4'))


def point_outside(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"model.fdl"', '"../../secret.fdl"'))


DAMAGES = {
    "a cut file": (cut, "model.fdl has 60 bytes, the manifest says"),
    "a flipped bit": (flip, "model.fdl' is damaged: its checksum differs from the one that was written"),
    "a missing file": (lambda path: os.remove(path / "data.json"), "data.json: No such file"),
    "no manifest": (lambda path: os.remove(path / "manifest.json"), "manifest.json: No such file"),
    "an empty manifest": (lambda path: os.truncate(path / "manifest.json", 0), "is damaged: Expecting value"),
    "a changed manifest": (
        change_manifest,
        "the checksum of manifest.json differs from the one that was written",
    ),
    "a manifest that points outside": (
        point_outside,
        "the checksum of manifest.json differs from the one that was written",
    ),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_bundle_is_skipped_and_reported(tmp_path, capsys, damage, reason):
    for step in (1, 2):
        parts = {"model": {"w": torch.full((50,), float(step))}, "data": {"step": step}}
        save_bundle(tmp_path, step, parts, metrics={"loss": 0.5})
    damage(tmp_path / "step-00000002")
    bundle, skipped = latest_bundle(tmp_path)
    assert bundle.step == 1
    assert len(skipped) == 1
    assert reason in skipped[0]
    assert f"skipping a bundle: {skipped[0]}" in capsys.readouterr().err
    with pytest.raises(DamagedError):
        read_bundle(tmp_path / "step-00000002")
    prune_bundles(tmp_path, last(1))
    assert (tmp_path / "step-00000001").exists(), "the newest undamaged bundle is kept"


def test_a_bundle_in_a_folder_of_a_different_step_is_damaged(tmp_path):
    save_bundle(tmp_path, 1, {"data": {}}).rename(tmp_path / "step-00000009")
    with pytest.raises(DamagedError, match="it was saved at step 1"):
        read_bundle(tmp_path / "step-00000009")
    (tmp_path / "step-00000009").rename(tmp_path / "a-copy")
    assert read_bundle(tmp_path / "a-copy") == {"data": {}}


@pytest.mark.parametrize(
    ("step", "parts", "message"),
    [
        (-1, {}, r"step=-1\. Pass the number of updates"),
        (True, {}, "step=True"),
        (1, {"a/b": {}}, r"'a/b' is not a valid part name"),
        (1, {"manifest": {}}, "'manifest' is not a valid part name"),
        (1, {"model": {"w": object()}}, r"at 'model\.w': an object cannot be saved"),
        (1, {"model": {"w": torch.ones(1, device="meta")}}, r"at 'w': the tensor is on the meta device"),
    ],
)
def test_an_invalid_save_raises_and_leaves_no_files(tmp_path, step, parts, message):
    with pytest.raises(CheckpointError, match=message):
        save_bundle(tmp_path, step, parts)
    assert os.listdir(tmp_path) == []
    with pytest.raises(CheckpointError, match="a metric is not a number"):
        save_bundle(tmp_path, 1, {}, metrics={"loss": torch.ones(2)})


def test_the_folder_of_a_step_that_was_saved_again_is_not_damaged_and_the_new_one_is_named(tmp_path):
    first = save_bundle(tmp_path, 1, {"model": {"w": torch.zeros(2)}})
    for _ in range(2):
        newest = save_bundle(tmp_path, 1, {"model": {"w": torch.ones(2)}})
    for read, path in ((read_bundle, first), (verify_bundle, first), (read_checkpoint, first / "model.fdl")):
        with pytest.raises(CheckpointError) as caught:
            read(path)
        assert not isinstance(caught.value, DamagedError)
        assert f"was replaced: step 1 was saved again, in {str(newest)!r}" in str(caught.value)
    assert read_bundle(newest)["model"]["w"].tolist() == [1.0, 1.0]


def test_a_bundle_that_does_not_exist_is_not_damaged(tmp_path):
    save_bundle(tmp_path, 1, {"model": {}})
    with pytest.raises(CheckpointError, match=r"step-00000009' does not exist\. Pass the folder") as caught:
        read_bundle(tmp_path / "step-00000009")
    assert not isinstance(caught.value, DamagedError)


def test_a_missing_part_is_named(tmp_path):
    path = save_bundle(tmp_path, 1, {"model": {}, "data": {}})
    with pytest.raises(CheckpointError, match=r"has no part 'modle'\. Did you mean 'model'\?"):
        read_bundle(path, parts=["modle"])


def test_leftovers_are_deleted_unless_a_save_is_in_progress(tmp_path):
    (tmp_path / ".step-00000001.abc.part").mkdir()
    (tmp_path / ".step-00000001.abc.part" / "model.fdl").touch()
    (tmp_path / ".step-00000002.abc.gone").mkdir()
    (tmp_path / ".hidden").mkdir()
    with shared_lock(tmp_path):
        assert clean_bundles(tmp_path) == []
    assert sorted(clean_bundles(tmp_path)) == [".step-00000001.abc.part", ".step-00000002.abc.gone"]
    assert os.listdir(tmp_path) == [".hidden"]


def test_a_root_that_is_a_file_raises(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        WriteError, match=r"cannot save step 3 in '.*file': .* is a file, not a folder\. Earlier"
    ):
        save_bundle(tmp_path / "file", 3, {})


def test_paths_may_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = save_bundle("~/run", 1, {"data": {"epoch": 1}})
    save_bundle("~/run", 2, {"data": {"epoch": 2}})
    assert path == tmp_path / "run" / "step-00000001"
    assert read_bundle("~/run/step-00000001") == {"data": {"epoch": 1}}
    assert clean_bundles("~/run") == []
    assert [bundle.step for bundle in prune_bundles("~/run", last(1))] == [1]
    assert [bundle.step for bundle in list_bundles("~/run")] == [latest_bundle("~/run").bundle.step] == [2]


def test_a_tensor_cannot_have_the_name_of_the_metadata(tmp_path):
    with pytest.raises(CheckpointError, match="'__metadata__' is the key of a file's metadata"):
        save_bundle(tmp_path, 1, {"model": {"__metadata__": torch.ones(2)}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.fdl", "link.fdl"])
def test_a_flipped_bit_in_a_file_of_a_bundle_is_detected_wherever_it_is_loaded_from(tmp_path, name):
    graph = FlowBuilder(nn.Linear(2, 2)).build()
    bundle = save_bundle(tmp_path, 1, {"model": graph.state_dict()})
    path = bundle / "model.fdl" if name == "model.fdl" else tmp_path / name
    if name != "model.fdl":
        path.symlink_to(bundle / "model.fdl")
    assert graph.load_checkpoint(path).is_complete
    data = (bundle / "model.fdl").read_bytes()
    before = {key: tensor.clone() for key, tensor in graph.state_dict().items()}
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        (bundle / "model.fdl").write_bytes(damaged)
        for load in (graph.load_checkpoint, read_checkpoint):
            with pytest.raises(CheckpointError):
                load(path)
    assert all(torch.equal(before[key], tensor) for key, tensor in graph.state_dict().items())


def test_the_metadata_of_a_bundle_is_in_its_files_and_not_in_its_parts(tmp_path):
    graph, other = (FlowBuilder(nn.Linear(2, 2)).through(kind()).build() for kind in (nn.GELU, nn.ReLU))
    state = {"model": graph.state_dict(), "data": {"position": 3}}
    path = save_bundle(tmp_path, 1, state, metadata={"structural_hash": graph.structural_hash})
    assert same(read_bundle(path), state)
    assert graph.load_checkpoint(path / "model.fdl", allow_different_structure=False).same_function
    assert other.load_checkpoint(path / "model.fdl").same_function is False


def test_a_file_next_to_a_damaged_manifest_is_not_loaded_without_verification(tmp_path):
    bundle = save_bundle(tmp_path, 1, {"model": {"w": torch.ones(2)}})
    (bundle / "manifest.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"the manifest next to it is damaged: .* copy the file to"):
        read_checkpoint(bundle / "model.fdl")
    (bundle / "model.fdl").rename(tmp_path / "model.fdl")
    assert torch.equal(read_checkpoint(tmp_path / "model.fdl")[0]["w"], torch.ones(2))


def test_a_manifest_of_another_program_does_not_concern_a_checkpoint(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "theirs.safetensors")
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    assert torch.equal(read_checkpoint(tmp_path / "theirs.safetensors")[0]["w"], torch.ones(2))


def forged(bundle, **changes):
    """Change a manifest and sign it again."""
    content = json.loads((bundle / "manifest.json").read_text())
    del content["digest"]
    content |= changes
    content["digest"] = digest([json.dumps(content, sort_keys=True).encode()])
    (bundle / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "1"}, {"step": -1}, {"step": True}, {"step": None}, {"step": 1.0}, {"step": []},
        {"created_s": "now"}, {"created_s": {}},
        {"metrics": []}, {"metrics": {"loss": "low"}}, {"metrics": {"loss": []}},
        {"metrics": {"$float": "1"}},
        {"metrics": {"loss": 10**400}}, {"metrics": {"loss": {"$size": [2**70]}}}, {"metrics": None},
        {"files": []}, {"files": {"../x.fdl": {}}}, {"files": {"model.fdl": {}}}, {"files": {"a.fdl": 1}},
        {"files": {"manifest.json": {"bytes": 1, "digest": "x"}}},
        {"files": {"a.fdl": {"bytes": "1", "digest": "x"}}},
        {"files": {name: {"bytes": 1, "digest": "x"} for name in ("a.fdl", "a.json")}},
        {"format": 2}, {"format": []},
    ],
)  # fmt: skip
def test_a_forged_manifest_raises(tmp_path, changes, capsys):
    bundle = save_bundle(tmp_path, 1, {"model": {"w": torch.ones(2)}}).rename(tmp_path / "renamed")
    forged(bundle)
    assert read_bundle(bundle)
    forged(bundle, **changes)
    with pytest.raises(DamagedError):
        read_bundle(bundle)
    bundle.rename(tmp_path / "step-00000001")
    assert latest_bundle(tmp_path).bundle is None
    assert list_bundles(tmp_path) == []
    capsys.readouterr()


def test_an_empty_path_is_not_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"the folder for the bundles is ''\. Pass a path"):
        save_bundle("", 3, {})
    with pytest.raises(CheckpointError, match=r"the folder for the bundles is ''\. Pass a path"):
        BackgroundWriter("")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("root", [None, 3, ["runs"], object()])
@pytest.mark.parametrize(
    "read",
    [
        list_bundles,
        damaged_bundles,
        latest_bundle,
        clean_bundles,
        lambda root: best_bundle(root, "loss"),
        lambda root: latest_bundle(root, missing_ok=True),
        lambda root: prune_bundles(root, last(1)),
    ],
)
def test_a_folder_of_bundles_that_is_not_a_path_is_an_error(read, root):
    with pytest.raises(CheckpointError, match=rf"the path is an? {type(root).__name__}\. Pass the"):
        read(root)
