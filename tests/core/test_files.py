"""Writing files atomically."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flodl.core.files import replace_atomic, write_atomic


def test_a_file_is_written_with_its_folders(tmp_path):
    target = tmp_path / "new" / "folder" / "note.txt"
    assert write_atomic(target, "hello ×") == target
    assert target.read_text(encoding="utf-8") == "hello ×"
    write_atomic(str(target), b"\x00\x01")
    assert target.read_bytes() == b"\x00\x01"


def _fail_halfway(target, error):
    with replace_atomic(target) as temporary:
        temporary.write_text("half of the new")
        raise error("in the middle")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "note.txt"
    target.write_text("old")
    with pytest.raises(error):
        _fail_halfway(target, error)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["note.txt"]


def test_a_failing_block_leaves_nothing_where_there_was_nothing(tmp_path):
    with pytest.raises(ValueError, match="in the middle"):
        _fail_halfway(tmp_path / "note.txt", ValueError)
    assert os.listdir(tmp_path) == []


def test_the_old_file_is_there_until_the_block_ends(tmp_path):
    target = tmp_path / "note.txt"
    target.write_text("old")
    with replace_atomic(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == target.parent
    assert target.read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "note.txt", "x")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "note.txt").stat().st_mode) == mode


def test_a_folder_that_cannot_be_created_raises(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_atomic(tmp_path / "file" / "note.txt", "x")


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        write_atomic(pipe, "through")
        assert read.result(timeout=10) == "through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_can_be_the_target(tmp_path):
    code = "from flodl.core.files import write_atomic; write_atomic('/dev/stdout', 'hello')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("hello", "")
    assert Path("/dev/stdout").is_symlink()


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert write_atomic("~/runs/note.txt", "hello") == tmp_path / "home/runs/note.txt"
    assert (tmp_path / "home/runs/note.txt").read_text() == "hello"
    assert os.listdir(tmp_path) == ["home"]
