"""A full disk and a read-only folder: earlier saves stay, and the run continues."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from flodl.checkpoint import BackgroundWriter, latest_bundle, read_bundle, save_bundle, save_checkpoint
from flodl.core import WriteError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs limits of another system")
SMALL = {"model": {"w": torch.ones(1000)}}
LARGE = {"model": {"w": torch.ones(1_000_000)}}


@contextlib.contextmanager
def tiny_disk(folder):
    """A file system of one megabyte."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True)
    if made.returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def short_files(folder):
    """No file may grow past half a megabyte."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def closed_folder(folder):
    """A read-only folder; root drops its privileges meanwhile."""
    is_root = os.geteuid() == 0
    if is_root:
        os.chmod(folder, 0o755)
        os.seteuid(65534)
    else:
        os.chmod(folder, 0o555)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        else:
            os.chmod(folder, 0o755)


@pytest.fixture
def root():
    # Not under pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder) / "run"
        root.mkdir()
        yield root


FAULTS = pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (tiny_disk, "No space left on device"),
        (short_files, "File too large"),
        (closed_folder, "Permission denied"),
    ],
)


def start(fault, root):
    """Save once, before or after the fault, whichever leaves a writable folder."""
    stack = contextlib.ExitStack()
    if fault is tiny_disk:
        stack.enter_context(fault(root))
        save_bundle(root, 1, SMALL)
    else:
        save_bundle(root, 1, SMALL)
        stack.enter_context(fault(root))
    return stack


@FAULTS
def test_earlier_saves_stay_and_no_partial_files_are_left(root, fault, reason):
    with start(fault, root):
        with pytest.raises(
            WriteError, match=rf"cannot save step 2 in .*: {reason}\. Earlier bundles are unchanged"
        ):
            save_bundle(root, 2, LARGE)
        assert os.listdir(root) == ["step-00000001"]
        bundle, skipped = latest_bundle(root)
        assert (bundle.step, skipped) == (1, [])
        assert read_bundle(bundle)["model"]["w"].all()


@FAULTS
def test_the_run_continues_and_the_failure_is_reported_once(root, fault, reason):
    events = []
    with start(fault, root), BackgroundWriter(root, on_error=events.append) as writer:
        for step in (2, 3, 4):
            writer.save(step, LARGE)
            writer.wait()
        assert [reason in str(event) for event in events] == [True]
        assert len(writer.failures) == 3
        if fault is not closed_folder:
            writer.save(5, SMALL)
            writer.wait()
            assert latest_bundle(root).bundle.step == 5


@FAULTS
def test_a_single_file_keeps_its_old_content(root, fault, reason):
    with contextlib.ExitStack() as stack:
        if fault is tiny_disk:
            stack.enter_context(fault(root))
        save_checkpoint(root / "model.fdl", SMALL["model"])
        before = (root / "model.fdl").read_bytes()
        if fault is not tiny_disk:
            stack.enter_context(fault(root))
        for name in ("model.fdl", "model.fdl.gz"):
            tensors = {"w": torch.randn(1_000_000)}
            with pytest.raises(WriteError, match=reason):
                save_checkpoint(root / name, tensors)
        assert os.listdir(root) == ["model.fdl"]
        assert (root / "model.fdl").read_bytes() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_stream_raises():
    with (
        open("/dev/full", "wb", buffering=0) as stream,
        pytest.raises(WriteError, match="cannot write the stream"),
    ):
        save_checkpoint(stream, SMALL["model"])
