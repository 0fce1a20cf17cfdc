"""The same program, started again in another process and folder, has no differences."""

import os

import pytest

from ...warm_python import WarmPython

CONSTANTS = "BETA = 1.0\nclass Options:\n    gain = 1.0\n"
PROGRAM = """
import argparse, array, collections, dataclasses, functools, sys
import torch
from torch import nn
import constants
from flodl import FlowBuilder, Loader, Trainer
from flodl.train import EarlyStopping

folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[4])
counter = 0
seen, stats = [], {"n": 0}
TAGS = frozenset({"alpha", "beta", "gamma", "delta"})
cache = collections.defaultdict(list)

@dataclasses.dataclass
class Weights:
    alpha: float = 0.5
    tags: frozenset = TAGS

weights = Weights()
reference = torch.arange(100.0)

class Net(nn.Module):
    kind = "small"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(3)])
        self.head = nn.Linear(3, 1)
        self.calls, self.act, self.last = 0, lambda x: torch.relu(x), None
        self.options = {"names": {"b", "a", "c"}, "sizes": (1, 2)}
    def forward(self, x):
        self.calls += 1
        for layer in self.layers:
            x = self.act(layer(x)) * constants.BETA
        self.last = x.detach()
        return self.head(x)

class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1).requires_grad_(False)
    def forward(self, x):
        return self.norm(x)

class Logger:
    def __init__(self, path):
        self.path, self.rows = path, []
    def on_step_end(self, loss):
        self.rows.append(loss)

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.cache = x, {}
    def __len__(self):
        return 20
    def __getitem__(self, index):
        self.cache[index] = self.x[index]
        return self.x[index], self.x[index].sum().reshape(1)

teacher = Teacher()
criterion = nn.HuberLoss(delta=0.5)
x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))

def make_step(table):
    calls = 0
    def step(model, x, y, *, power=1):
        global counter
        nonlocal calls
        counter += 1
        calls += 1
        stats["n"] += 1
        seen.append(counter)
        cache[counter].append(1)
        note(x)
        scale = weights.alpha * table["scale"] * constants.Options.gain
        return (criterion(teacher(model(x)), y) + reference.mean()) * scale * len(weights.tags) ** power
    return step

def note(x):
    cache["sizes"].append(len(x))

class Decay:
    def __init__(self, scheduler):
        self.scheduler = scheduler
    def on_epoch_end(self):
        self.scheduler.step()
    def state_dict(self):
        return self.scheduler.state_dict()
    def load_state_dict(self, state):
        self.scheduler.load_state_dict(state)

class Smoothed(torch.optim.SGD):
    def __init__(self, groups, k):
        super().__init__(groups, lr=0.01)
        self.k = k

rows = array.array("d", [1.0] * 40)
model = Net()
model.layers[1].eval()
model.layers[2][0].requires_grad_(False)
optimizer = Smoothed([{"params": model.layers.parameters()}, {"params": model.head.parameters()}], k=6)
falls = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scheduler = torch.optim.lr_scheduler.ChainedScheduler(
    [falls, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 90])])
table = {"scale": 2.0, "rows": torch.ones(30), "places": range(9), "more": rows}
trainer = Trainer(
    model,
    functools.partial(make_step(table), power=1),
    optimizer=optimizer,
    metrics=None,
    hooks=[Logger("out"), EarlyStopping("loss", patience=50), Decay(scheduler)],
    checkpoint_dir=folder,
    device="cpu",
    tier="eager",
    monitor=False,
)
offset = 0.0
data = {
    "loader": lambda: Loader(
        (x, x.sum(1, keepdim=True)), 5, augment=[lambda batch: (batch[0] + offset, batch[1])]),
    "torch": lambda: torch.utils.data.DataLoader(Rows(), batch_size=5, collate_fn=lambda rows: (
        torch.stack([a for a, _ in rows]) + offset, torch.stack([b for _, b in rows]))),
}[sys.argv[3]]()
# Several starts in one process: what training changed is not a setting.
for number in range(first, last + 1):
    trainer.fit(data, epochs=number, eval_data=Rows())
print(counter, len(trainer.history))
"""


@pytest.fixture(scope="module")
def pythons():
    """Pythons that differ in the order of their sets."""
    found = [WarmPython(PYTHONHASHSEED=str(number)) for number in range(3)]
    yield found
    for each in found:
        each.close()


def start(python, program, folder, *arguments, cwd):
    words = [os.path.relpath(program, cwd), folder, *map(str, arguments)]
    done = python.run(*words, cwd=cwd, FLODL_VERBOSITY="1")
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("data", ["loader", "torch"])
def test_the_same_program_in_another_process_and_folder_has_no_differences(tmp_path, pythons, data):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    (tmp_path / "constants.py").write_text(CONSTANTS)
    (tmp_path / "inner").mkdir()
    folder = str(tmp_path / "run")
    places = ((1, 1, tmp_path), (2, 3, tmp_path / "inner"), (3, 3, tmp_path))
    said = [
        start(python, program, folder, first, data, last, cwd=place)
        for python, (first, last, place) in zip(pythons, places)
    ]
    assert said == ["", "", ""]
    changed = CONSTANTS.replace("BETA = 1.0", "BETA = 2.0").replace("gain = 1.0", "gain = 3.0")
    (tmp_path / "constants.py").write_text(changed)
    program.write_text(PROGRAM.replace("delta=0.5", "delta=0.25").replace("offset = 0.0", "offset = 1.0"))
    last = start(pythons[0], program, folder, 4, data, 4, cwd=tmp_path)
    assert "step.criterion.delta is now 0.25, was 0.5" in last
    assert "step.constants.Options.gain is now 3.0, was 1.0" in last
    assert "model.classes.Net.constants.BETA is now 2.0, was 1.0" in last
    assert "offset" in last
