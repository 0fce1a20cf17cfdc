"""Downloads from a real server: interrupted, resumed, wrong, concurrent."""

import hashlib
import threading

import pytest

from flodl.core import DownloadError
from flodl.data.datasets.download import download

CONTENT = bytes(range(256)) * 4096  # one megabyte
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@pytest.fixture(autouse=True)
def content(server):
    server.content = CONTENT


def get(server, folder, **settings):
    settings = {"num_bytes": len(CONTENT), "md5": MD5, "pause_s": 0, **settings}
    return download([server.url], folder / "data" / "file.bin", **settings)


def test_a_download_leaves_only_the_complete_file(server, tmp_path):
    path = get(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]
    assert server.requests == [None]


def test_an_interrupted_transfer_is_resumed(server, tmp_path):
    server.faults = ["break", "break"]
    assert get(server, tmp_path).read_bytes() == CONTENT
    third = len(CONTENT) // 3
    second = third + (len(CONTENT) - third) // 3
    assert server.requests == [None, f"bytes={third}-", f"bytes={second}-"]


def test_a_later_call_resumes_a_partial_file(server, tmp_path):
    server.faults = ["break"]
    with pytest.raises(DownloadError) as caught:
        get(server, tmp_path, attempts=1)
    kept = tmp_path / "data" / "file.bin.part"
    assert kept.stat().st_size == len(CONTENT) // 3
    assert "after 1 attempts" in str(caught.value)
    assert f"341 KB are kept in {kept}; a later call resumes there." in str(caught.value)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests[1] == f"bytes={len(CONTENT) // 3}-"


def test_a_server_without_ranges_sends_the_file_again(server, tmp_path):
    server.faults = ["break", "no ranges"]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_partial_file_that_is_too_long_is_deleted(server, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(CONTENT + b"more")
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_complete_partial_file_needs_no_request(server, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == []


def test_a_temporary_server_error_is_retried(server, tmp_path):
    server.faults = [503, 500]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_permanent_error_names_the_url_and_the_target(server, tmp_path):
    server.faults = [404] * 4
    with pytest.raises(DownloadError) as caught:
        get(server, tmp_path)
    target = tmp_path / "data" / "file.bin"
    assert str(caught.value) == (
        "file.bin could not be downloaded after 4 attempts. The last error: "
        f"{server.url}: HTTP 404 Not Found. Check the network, or put the file at {target} yourself."
    )
    assert not target.exists()


def test_the_second_url_is_used_when_the_first_fails(server, tmp_path):
    nowhere = "http://127.0.0.1:9/file.bin"
    path = download([nowhere, server.url], tmp_path / "f", num_bytes=len(CONTENT), md5=MD5, pause_s=0)
    assert path.read_bytes() == CONTENT


def test_content_with_a_wrong_hash_is_deleted(server, tmp_path):
    server.content = CONTENT[::-1]
    with pytest.raises(
        DownloadError, match=f"is not the published file: MD5 .*, expected {MD5}. It was deleted."
    ):
        get(server, tmp_path)
    assert not {"file.bin", "file.bin.part"} & {path.name for path in (tmp_path / "data").iterdir()}


def test_progress_is_logged_in_lines(server, tmp_path, capsys):
    get(server, tmp_path)
    assert capsys.readouterr().out.splitlines()[-1] == "file.bin: 1 MB of 1 MB"
    seen = []
    get(server, tmp_path / "other", progress=lambda have, total: seen.append((have, total)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)


def test_concurrent_processes_download_a_file_once(server, tmp_path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(get(server, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in results] == [True] * 4
    assert len(server.requests) == 1


def test_a_folder_that_cannot_be_created_raises(server, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DownloadError, match=r"cannot be written: (File exists|Not a directory)"):
        get(server, tmp_path)


def test_a_full_disk_ends_the_download_at_once(server, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match="cannot be written: No space left on device"):
        get(server, tmp_path)
    assert server.requests == [None]
