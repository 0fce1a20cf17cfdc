"""Single checkpoint files, written in the background."""

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import FileWriter, read_checkpoint, snapshot_cpu
from flodl.core import CheckpointError, WriteError


def unwritable(folder: Path) -> Path:
    """Return a path below a file, where nothing can be written."""
    (folder / "file").touch()
    return folder / "file" / "a.fdl"


def test_the_file_contains_the_state_at_the_time_of_the_call(tmp_path):
    weight = torch.zeros(1000, 100)
    with FileWriter() as writer:
        saved = writer.save(tmp_path / "a.fdl", {"weight": weight})
        weight.add_(1)
        assert saved.result() == tmp_path / "a.fdl"
    assert float(read_checkpoint(tmp_path / "a.fdl")[0]["weight"].abs().max()) == 0


def test_files_are_written_in_order(tmp_path):
    with FileWriter(depth=4) as writer:
        for value in range(8):
            writer.save(tmp_path / "best.fdl", {"weight": torch.full((4,), float(value))})
    assert read_checkpoint(tmp_path / "best.fdl")[0]["weight"].tolist() == [7.0] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["best.fdl"]


def test_a_graph_a_module_and_a_snapshot_can_be_saved(tmp_path):
    graph = FlowBuilder(nn.Linear(2, 2)).tag("stem").build()
    with FileWriter() as writer:
        writer.save(tmp_path / "graph.fdl", graph)
        writer.save(tmp_path / "module.fdl", nn.Linear(2, 2))
        writer.save(tmp_path / "snapshot.fdl", graph.snapshot_cpu())
        writer.save(tmp_path / "tensors.fdl", snapshot_cpu(graph.state_dict()))
        writer.wait()
        assert writer.is_idle
    assert graph.load_checkpoint(tmp_path / "graph.fdl").same_function
    assert sorted(read_checkpoint(tmp_path / "module.fdl")[0]) == ["bias", "weight"]


def test_a_failure_is_reported_and_the_next_save_works(tmp_path, capsys):
    with FileWriter() as writer:
        writer.save(unwritable(tmp_path), {"w": torch.ones(1)})
        writer.wait()
        writer.save(tmp_path / "b.fdl", {"w": torch.ones(1)})
    assert isinstance(writer.failures[0], WriteError)
    assert "The run continues." in capsys.readouterr().err
    assert (tmp_path / "b.fdl").exists()


def test_a_failure_is_raised_where_asked_for(tmp_path):
    writer = FileWriter(errors="raise")
    saved = writer.save(unwritable(tmp_path), {"w": torch.ones(1)})
    with pytest.raises(WriteError):
        writer.wait()
    with pytest.raises(WriteError):
        saved.result()
    writer.close()


def test_mistakes_raise_at_the_call(tmp_path):
    writer = FileWriter()
    with pytest.raises(CheckpointError, match=r"suffix of a torch\.save file"):
        writer.save(tmp_path / "a.pt", {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match="Pass the path of a file"):
        writer.save({"w": torch.ones(1)}, tmp_path / "a.fdl")
    with pytest.raises(CheckpointError, match="the tensors are a list"):
        writer.save(tmp_path / "a.fdl", [1])
    writer.save(tmp_path / "a.fdl", {"w": torch.ones(1)}).result()
    writer.close()
    with pytest.raises(CheckpointError, match="the writer is closed"):
        writer.save(tmp_path / "a.fdl", {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match="depth=0"):
        FileWriter(depth=0)
    with pytest.raises(CheckpointError, match="errors='ignore'"):
        FileWriter(errors="ignore")


def test_closing_ends_the_thread(tmp_path):
    with FileWriter() as writer:
        writer.save(tmp_path / "a.fdl", {"w": torch.ones(1)})
    assert not any(thread.name.startswith("flodl-file-writer") for thread in threading.enumerate())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_its_own_thread(tmp_path):
    with FileWriter() as writer:
        writer.save(tmp_path / "parent.fdl", {"w": torch.ones(1)}).result()
        child = os.fork()
        if child == 0:
            try:
                writer.save(tmp_path / "child.fdl", {"w": torch.ones(1)}).result(timeout=20)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert (tmp_path / "child.fdl").exists()
