"""Files of torch.save: read, never run."""

import io
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import flodl
from flodl import FlowBuilder
from flodl.checkpoint import checkpoint_keys, load_checkpoint, read_checkpoint
from flodl.core import CheckpointError, DamagedError


def build():
    return FlowBuilder(nn.Linear(2, 3)).tag("body").through(nn.Linear(3, 1)).tag("head").build()


def test_a_state_dict_is_loaded_from_a_path_and_from_a_stream(tmp_path):
    model = build()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for source in (tmp_path / "model.pt", io.BytesIO((tmp_path / "model.pt").read_bytes())):
        other = build()
        assert other.load_checkpoint(source).is_complete
        assert torch.equal(other.body.weight, model.body.weight)


def test_a_state_dict_inside_a_larger_table_is_found_by_its_prefix(tmp_path):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, tmp_path / "run.pt")
    assert checkpoint_keys(tmp_path / "run.pt")[:2] == ["model.body.weight", "model.body.bias"]
    with pytest.raises(CheckpointError, match=r"has all of them under 'model'\. .* Pass prefix='model'"):
        build().load_checkpoint(tmp_path / "run.pt")
    assert build().load_checkpoint(tmp_path / "run.pt", prefix="model").is_complete


class Attack:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


@pytest.mark.parametrize("old_form", [False, True])
def test_a_program_in_a_file_is_never_run(tmp_path, monkeypatch, old_form):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Attack()}, "bad.pt", _use_new_zipfile_serialization=not old_form)
    Path("bad.pickle").write_bytes(pickle.dumps(Attack()))
    for name in ("bad.pt", "bad.pickle"):
        with pytest.raises(DamagedError) as caught:
            read_checkpoint(name)
        assert "weights_only=False" not in str(caught.value)
    assert not Path("hacked").exists()


def test_a_file_of_another_kind_is_refused(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(DamagedError, match="it holds a list, not a table of tensors"):
        read_checkpoint(tmp_path / "list.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "list.pt").read_bytes()[:-40])
    with pytest.raises(DamagedError, match="torch cannot read it safely"):
        read_checkpoint(tmp_path / "cut.pt")


def test_a_change_to_a_mapped_tensor_does_not_reach_the_file(tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "w.pt")
    read_checkpoint(tmp_path / "w.pt")[0]["w"] += 1
    target = {"w": torch.ones(2)}
    load_checkpoint(tmp_path / "w.pt", target)
    assert not target["w"].any()


def test_nothing_in_the_package_unpickles():
    source = Path(flodl.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.relative_to(source).as_posix() == "engine/worker.py":
            # The pipe to a child process that flodl itself has just started.
            text = text.replace("pickle.loads(sys.stdin.buffer.read())", "")
        assert not re.search(r"\b(pickle|dill|joblib|cloudpickle|shelve|marshal)\.loads?\b", text), path
        assert not re.search(r"from (pickle|dill|joblib|cloudpickle|shelve|marshal) import", text), path
        assert not re.search(r"Unpickler|allow_pickle=True", text), path
        for call in re.findall(r"torch\.load\((.*?)\)", text, flags=re.DOTALL):
            assert "weights_only=True" in call, path
        assert not re.search(r"from torch import .*\bload\b|torch\.serialization", text), path
