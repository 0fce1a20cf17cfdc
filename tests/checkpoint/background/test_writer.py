"""The background writer: real copies, a bounded queue, and no lost failures."""

import fcntl
import gc
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch

from flodl.checkpoint import BackgroundWriter, best, last, latest_bundle, list_bundles, read_bundle
from flodl.checkpoint.background.writer import wait_for_writers
from flodl.checkpoint.durable_files import exclusive_lock
from flodl.core import CheckpointError, WriteError


@contextmanager
def held_up(root):
    """Block every writer of a folder."""
    handle = os.open(root, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def steps(root):
    return [bundle.step for bundle in list_bundles(root)]


def blocked(root):
    """Put a file where the folder of the bundles should be."""
    root.touch()
    return root


def test_the_state_is_saved_as_of_the_call(tmp_path):
    weight = torch.zeros(1000)
    with BackgroundWriter(tmp_path, depth=3) as writer:
        with held_up(tmp_path):
            for step in range(3):
                assert writer.save(step, {"model": {"w": weight, "tied": weight}, "data": {"step": step}})
                weight += 1
            assert not writer.is_idle
        writer.wait()
        assert writer.is_idle
        assert writer.last_saved == tmp_path / "step-00000002"
        assert writer.save(3, {"model": {"w": weight, "tied": weight}, "data": {"step": 3}})
        weight += 1
    assert steps(tmp_path) == [0, 1, 2, 3]
    for bundle in list_bundles(tmp_path):
        state = read_bundle(bundle)
        assert (state["model"]["w"] == bundle.step).all()
        assert state["model"]["w"] is state["model"]["tied"]
        assert state["data"] == {"step": bundle.step}


def test_a_full_queue_skips_with_when_full_skip(tmp_path):
    with BackgroundWriter(tmp_path, when_full="skip") as writer:
        with held_up(tmp_path):
            assert [writer.save(step, {"data": {}}) for step in range(3)] == [True, False, False]
        writer.wait()
        assert writer.save(3, {"data": {}})
    assert steps(tmp_path) == [0, 3]


def test_a_full_queue_waits_by_default(tmp_path):
    reached = threading.Event()

    def save_twice(writer):
        writer.save(1, {"data": {}})
        reached.set()
        writer.save(2, {"data": {}})

    with BackgroundWriter(tmp_path) as writer:
        with held_up(tmp_path):
            saving = threading.Thread(target=save_twice, args=(writer,))
            saving.start()
            reached.wait()
            saving.join(0.05)
            assert saving.is_alive(), "the second save waits for the first"
        saving.join()
    assert steps(tmp_path) == [1, 2]


def test_old_bundles_are_deleted_by_the_policy(tmp_path):
    with BackgroundWriter(tmp_path, keep=last(1) | best("loss")) as writer:
        for step, loss in enumerate([0.3, 0.1, 0.2, 0.4]):
            writer.save(step, {"data": {}}, metrics={"loss": loss})
    assert steps(tmp_path) == [1, 3]


def test_a_missing_metric_raises_before_anything_is_deleted(tmp_path):
    with BackgroundWriter(tmp_path, keep=best("los")) as writer:
        for step in (1, 2):
            with pytest.raises(
                CheckpointError,
                match=rf"needs the metric 'los', which step {step} lacks\. Did you mean 'loss'\?",
            ):
                writer.save(step, {"data": {}}, metrics={"loss": 0.1})
        assert writer.save(3, {"data": {}}, metrics={"los": 0.1})
    assert steps(tmp_path) == [3]


def test_saves_without_the_needed_metrics_warn_once(tmp_path, capsys):
    with BackgroundWriter(tmp_path, keep=best("loss")) as writer:
        writer.save(1, {"data": {}}, metrics={})  # explicitly nothing measured
        assert capsys.readouterr().err == ""
        writer.save(2, {"data": {}})
        writer.save(3, {"data": {}})
    told = capsys.readouterr().err
    assert told.count("step 2 is saved without metrics, but keep=best('loss', 1, mode='min') needs") == 1
    assert "step 3" not in told
    with BackgroundWriter(tmp_path, keep=last(1)) as writer:
        writer.save(4, {"data": {}})
    assert capsys.readouterr().err == ""


def test_on_saved_is_called_when_the_bundle_is_on_disk(tmp_path):
    told = []

    def note(saved):
        told.append((saved.step, saved.path.name, saved.metrics, saved.reason, steps(tmp_path)[-1]))
        assert saved.duration_s > 0
        assert threading.current_thread().name == "flodl-writer"

    with BackgroundWriter(tmp_path, depth=3, on_saved=note) as writer:
        with held_up(tmp_path):
            writer.save(1, {"data": {}}, metrics={"loss": 2.0}, reason="first")
            writer.save(2, {"data": {}})
            writer.save(2, {"data": {}}, reason="again")
            assert told == []
        writer.wait()
        assert told == [
            (1, "step-00000001", {"loss": 2.0}, "first", 1),
            (2, "step-00000002", {}, "", 2),
            (2, "step-00000002.2", {}, "again", 2),
        ]


def test_on_saved_is_not_called_for_a_failed_save(tmp_path):
    told = []
    with BackgroundWriter(blocked(tmp_path / "run"), on_error=told.append, on_saved=told.append) as writer:
        writer.save(1, {"data": {}})
    assert [type(news) for news in told] == [WriteError]


def test_a_process_forked_during_a_save_does_not_block_the_next(tmp_path):
    reading, writing = os.pipe()
    with exclusive_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent continues
            os._exit(0)
    try:
        with BackgroundWriter(tmp_path) as writer:
            writer.save(1, {"data": {}})
        assert steps(tmp_path) == [1]
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_failures_in_a_row_are_reported_once_and_the_run_continues(tmp_path, capsys):
    events = []
    root = blocked(tmp_path / "run")
    writer = BackgroundWriter(root, on_error=events.append)
    for step in range(3):
        assert writer.save(step, {"data": {}})
        writer.wait()
    assert len(events) == 1
    assert isinstance(events[0], WriteError)
    assert len(writer.failures) == 3
    root.unlink()
    writer.save(3, {"data": {}})
    writer.wait()
    assert capsys.readouterr().out == "saving works again at step 3; 3 saves failed\n"
    root.rename(tmp_path / "moved")
    blocked(root)
    writer.save(4, {"data": {}})
    writer.close()
    assert len(events) == 2
    assert steps(tmp_path / "moved") == [3]


def test_without_on_error_a_failure_is_logged(tmp_path, capsys):
    with BackgroundWriter(blocked(tmp_path / "run")) as writer:
        writer.save(1, {"data": {}})
        writer.wait()
    assert capsys.readouterr().err.startswith("cannot save step 1 in ")


@pytest.mark.parametrize("call", ["save", "wait", "close"])
def test_with_errors_raise_the_next_call_raises(tmp_path, call):
    writer = BackgroundWriter(blocked(tmp_path / "run"), errors="raise")
    writer.save(1, {"data": {}})
    while not writer.is_idle:
        pass
    calls = {"save": lambda: writer.save(2, {"data": {}}), "wait": writer.wait, "close": writer.close}
    with pytest.raises(WriteError, match="cannot save step 1"):
        calls[call]()
    writer.close()
    assert len(writer.failures) == 1


def fail_while_saving(root):
    with BackgroundWriter(root, errors="raise") as writer:
        writer.save(1, {"data": {}})
        raise ZeroDivisionError


def test_a_failure_is_logged_when_another_error_ends_the_run(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError):
        fail_while_saving(blocked(tmp_path / "run"))
    assert "while another error ends the run: cannot save step 1" in capsys.readouterr().err


def test_an_error_in_a_callback_is_raised(tmp_path):
    for folder in (blocked(tmp_path / "closed"), tmp_path / "open"):
        writer = BackgroundWriter(folder, on_error=lambda error: {}[0], on_saved=lambda saved: {}[0])
        writer.save(1, {"data": {}})
        with pytest.raises(KeyError):
            writer.wait()
        writer.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_sys_exit_in_a_callback_is_raised_in_the_program(tmp_path, is_closed):
    folder = blocked(tmp_path / "closed") if is_closed else tmp_path / "open"
    writer = BackgroundWriter(folder, on_error=lambda error: sys.exit(3), on_saved=lambda saved: sys.exit(3))
    writer.save(1, {"data": {}})
    with pytest.raises(SystemExit) as caught:
        writer.wait()
    assert caught.value.code == 3
    assert writer.save(2, {"data": {}}), "the thread goes on"
    if not is_closed:
        with pytest.raises(SystemExit):
            writer.wait()
    writer.close()
    assert writer.is_idle


def test_an_unsupported_value_raises_at_once(tmp_path):
    with BackgroundWriter(tmp_path) as writer:
        for bad in ({"data": object()}, {"model": {"w": torch.ones(1, device="meta")}}):
            with pytest.raises(CheckpointError):
                writer.save(1, bad)
        assert writer.save(2, {"data": {}}), "the queue is still free"
    assert steps(tmp_path) == [2]
    with pytest.raises(CheckpointError, match="the writer is closed"):
        writer.save(3, {"data": {}})
    writer.close()


def test_leftovers_are_deleted_at_the_start(tmp_path):
    (tmp_path / ".step-00000001.abc.part").mkdir()
    BackgroundWriter(tmp_path).close()
    assert os.listdir(tmp_path) == []


def test_an_unreferenced_writer_still_writes(tmp_path):
    writer = BackgroundWriter(tmp_path)
    writer.save(1, {"data": {}})
    del writer
    gc.collect()
    assert steps(tmp_path) == [1]


@pytest.mark.slow
def test_a_program_that_ends_without_closing_still_writes(tmp_path, warm_python):
    code = (
        "import torch; from flodl.checkpoint import BackgroundWriter\n"
        f"writer = BackgroundWriter({str(tmp_path)!r})\n"
        "writer.save(1, {'model': {'w': torch.ones(5_000_000)}})"
    )
    done = warm_python.run("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (read_bundle(latest_bundle(tmp_path).bundle)["model"]["w"] == 1).all()


@pytest.mark.slow
def test_a_writer_collected_in_its_own_thread_still_writes(tmp_path, warm_python):
    code = f"""
import gc, threading, torch
from flodl.checkpoint import BackgroundWriter

class Holder: pass

def collect(saved):
    left.wait()
    gc.collect()
    collected.set()

def forget_a_writer():
    holder = Holder()
    holder.itself, holder.writer = holder, BackgroundWriter({str(tmp_path)!r}, depth=2, on_saved=collect)
    holder.writer.save(1, {{'data': {{}}}})
    holder.writer.save(2, {{'model': {{'w': torch.ones(5_000_000)}}}})

left, collected = threading.Event(), threading.Event()
gc.disable()
forget_a_writer()
left.set()
collected.wait()
"""
    done = warm_python.run("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert steps(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    "wrong", [{"depth": 0}, {"depth": "2"}, {"when_full": "drop"}, {"errors": "ignore"}, {"keep": 3}]
)
def test_settings_are_checked(tmp_path, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(CheckpointError, match=f"{name}={value!r}"):
        BackgroundWriter(tmp_path, **wrong)


def test_the_folder_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for root in ("run", "~/run"):
        with BackgroundWriter(root) as writer:
            (tmp_path / "elsewhere").mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / "elsewhere")
            writer.save(1, {"data": {}})
        assert writer.last_saved is not None
        assert writer.last_saved.parent == tmp_path / "run"
        monkeypatch.chdir(tmp_path)
    assert steps(tmp_path / "run") == [1]


def test_the_name_of_the_metadata_raises_at_the_call(tmp_path):
    with BackgroundWriter(tmp_path) as writer, pytest.raises(CheckpointError, match="'__metadata__'"):
        writer.save(1, {"model": {"__metadata__": torch.ones(2)}})


IN_A_CHILD = """
import os, signal, sys
import torch
from flodl.checkpoint import BackgroundWriter, load_checkpoint, save_bundle, save_checkpoint

torch.set_num_threads(2)
x = torch.randn(1000, 1000)
x @ x  # starts threads, which a child does not have
target = torch.zeros(1000, 999)
writer = BackgroundWriter(sys.argv[1])
writer.save(1, {"model": {"x": x}})
child = os.fork()
if child == 0:
    signal.alarm(60)
    writer.save(2, {"model": {"x": x[:, 1:]}})
    writer.wait()
    writer.close()
    save_bundle(sys.argv[1], 3, {"model": {"x": x[:, 1:]}})
    save_checkpoint(sys.argv[1] + "/x.fdl", {"x": x[:, 1:]})
    load_checkpoint(sys.argv[1] + "/x.fdl", {"x": target})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for the comparison
    os._exit(0 if torch.equal(target, x[:, 1:]) and threads == 2 else 1)
writer.close()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_forked_child_can_save_and_load(tmp_path):
    subprocess.run([sys.executable, "-c", IN_A_CHILD, str(tmp_path)], check=True, timeout=100)
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.slow
def test_a_forked_child_that_does_not_save_leaves_the_saves_of_its_parent_alone(tmp_path):
    code = IN_A_CHILD.replace("    writer.save(2", "    sys.exit()\n    writer.save(2")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=100)
    assert steps(tmp_path) == [1]


def test_two_writers_of_one_folder_save_whole_bundles_or_say_what_is_wrong(tmp_path):
    one, other = (BackgroundWriter(tmp_path, errors="report", on_error=lambda error: None) for _ in range(2))
    for step in range(1, 9):
        for number, writer in enumerate((one, other)):
            writer.save(step, {"model": {"weight": torch.full((64,), float(number))}})
    one.close()
    other.close()
    for failure in one.failures + other.failures:
        assert "another run has saved this step there" in str(failure)
    for bundle in list_bundles(tmp_path):
        weight = read_bundle(bundle)["model"]["weight"]
        assert torch.equal(weight, weight[:1].expand(64))
    assert steps(tmp_path) == [*range(1, 9)]


def test_whoever_reads_a_folder_can_wait_for_the_saves_of_others(tmp_path):
    is_reading = threading.Event()
    writer = BackgroundWriter(tmp_path / "run", before_write=lambda: is_reading.wait(10.0))
    other = BackgroundWriter(tmp_path / "other", before_write=lambda: is_reading.wait(10.0))
    writer.save(1, {"model": {"weight": torch.zeros(2)}})
    other.save(1, {"model": {"weight": torch.zeros(2)}})
    wait_for_writers(tmp_path / "empty")
    assert not latest_bundle(tmp_path / "run", missing_ok=True).bundle
    threading.Timer(0.1, is_reading.set).start()
    wait_for_writers(tmp_path / "run")
    assert len(list_bundles(tmp_path / "run")) == 1
    writer.close()
    other.close()
