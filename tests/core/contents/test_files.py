"""A file is described by what is in it."""

import os
import socket

import pytest

from flodl.core.contents import file_text

LARGE = 3 << 20


def test_equal_files_have_equal_descriptions_wherever_and_whenever_they_were_written(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).write_bytes(b"abc")
    os.utime(tmp_path / "one", (0, 0))
    assert file_text(tmp_path / "one") == file_text(str(tmp_path / "other")) == "3 bytes #ba7816bf"


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("change", ["size", "first", "last"])
def test_a_file_with_another_size_or_other_bytes_has_another_description(tmp_path, size, change):
    path, content = tmp_path / "file", bytearray(size)
    path.write_bytes(content)
    before = file_text(path)
    if change == "size":
        content += b"\0"
    else:
        content[0 if change == "first" else -1] = 1
    path.write_bytes(content)
    assert file_text(path) != before


def test_all_bytes_of_a_small_file_count_and_64_parts_of_a_large_one(tmp_path):
    path = tmp_path / "file"
    for size, is_noticed in ((1 << 20, True), (LARGE, False)):
        path.write_bytes(bytes(size))
        before = file_text(path)
        with open(path, "r+b") as file:
            file.seek(2000)  # between the first two parts of the large file
            file.write(b"1")
        assert (file_text(path) != before) is is_noticed


def test_pipes_sockets_devices_folders_and_what_is_not_a_path_are_not_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)
        server.bind("socket")
        for path in (
            tmp_path / "pipe",
            "socket",
            "/dev/zero",
            tmp_path,
            "missing",
            "",
            "\0",
            "\udc80",
            "x" * 9999,
        ):
            assert file_text(path) is None
