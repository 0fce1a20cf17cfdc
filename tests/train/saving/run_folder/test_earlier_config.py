"""A damaged config.json is kept under another name, with a warning."""

import json

import pytest

from flodl.core import TrainError
from flodl.train.saving.run_folder.directory import RunDirectory
from flodl.train.saving.run_folder.earlier_config import damage_of

DAMAGED = {
    "truncated": b'{"tra',
    "empty": b"",
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "a list": b"[1]",
    "trainer is a number": b'{"trainer": 5}',
    "started_with is a list": b'{"trainer": {}, "started_with": [1]}',
    "starts is a number": b'{"trainer": {}, "starts": 5}',
    "starts contains numbers": b'{"trainer": {}, "starts": [5]}',
    "ignored settings are a number": b'{"trainer": {"ignored_settings": 5}}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_config_json_is_kept_and_reported(make, data, tmp_path, capsys, content):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    (tmp_path / "config.json").write_bytes(content)
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    assert (tmp_path / "config.json.damaged").read_bytes() == content
    said = " ".join(capsys.readouterr().err.split())
    assert said.count(f"is damaged: {damage_of(content)}. It was renamed to 'config.json.damaged'") == 1
    (start,) = json.loads((tmp_path / "config.json").read_text())["starts"]
    assert start["step"] == 3
    make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    assert "damaged" not in capsys.readouterr().err


def test_damaged_files_do_not_replace_each_other(make, data, tmp_path):
    for epochs in (1, 2, 3):
        make(checkpoint_dir=tmp_path).fit(data, epochs=epochs, batch_size=8)
        (tmp_path / "config.json").write_text(f"{{{epochs}")
    kept = {path.name: path.read_text() for path in tmp_path.glob("config.json.*")}
    assert kept == {"config.json.damaged": "{1", "config.json.damaged-2": "{2"}


def test_a_start_that_fails_leaves_a_damaged_file_where_it_is(make, data, tmp_path):
    (tmp_path / "config.json").write_text("{")
    directory = RunDirectory(
        tmp_path, keep=None, when_disk_fails="stop", report=print, on_error=print, before_save=print
    )
    with pytest.raises(RuntimeError), directory.begin({}):  # noqa: PT012
        assert (tmp_path / "config.json.damaged").is_file()
        raise RuntimeError
    assert (tmp_path / "config.json").read_text() == "{"
    assert not list(tmp_path.glob("config.json.*"))


def test_a_folder_in_the_place_of_config_json_is_named(make, data, tmp_path, capsys):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(TrainError, match=r"config.json': it is a folder. Move it away, or choose another"):
        make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    (tmp_path / "config.json").rmdir()
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    said = " ".join(capsys.readouterr().err.split())
    assert "it is a folder. Move it away: training continues" in said
    assert "Free some space" not in said
