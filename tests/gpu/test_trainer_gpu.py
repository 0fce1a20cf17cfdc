"""A trainer on CUDA: captured, killed, gone on with, and the same numbers throughout."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import Loader, Trainer, set_verbosity
from flodl.core import NotFiniteError
from flodl.optim import CosineScheduler

SAMPLES, BATCH, EPOCHS = 200, 16, 8  # 13 batches an epoch, the last one ragged; 104 in all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def data_of() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


def make(step_fn=None, **settings) -> Trainer:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 1))
    settings = {"tier": "captured", "device": "cuda", "monitor": False, **settings}
    return Trainer(
        model,
        step_fn or (lambda model, x, y: nn.functional.mse_loss(model(x), y)),
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        schedule=CosineScheduler(1e-3, 1e-5, 110),
        clip_norm=1.0,
        ema=0.9,
        **settings,
    )


class Witness:
    """Notes every loss in a file, and kills or stops the process after so many batches."""

    def __init__(self, folder: Path, end_at: int, number: int) -> None:
        self.folder, self.end_at, self.number = folder, end_at, number
        self.steps = 0

    def on_step_end(self, loss: torch.Tensor) -> None:
        self.steps += 1
        with open(self.folder / "losses", "a") as file:
            file.write(f"{self.steps} {loss.item().hex()}\n")
        if self.steps == self.end_at:
            os.kill(os.getpid(), self.number)

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def train(folder: Path, end_at: int, number: int, tier: str, accumulate: int, streaming: int) -> None:
    """What the processes of these tests do."""
    x, y = data_of()
    trainer = make(
        tier=tier,
        accumulate=accumulate,
        checkpoint_dir=folder / "run",
        save_every_steps=5,
        hooks=[Witness(folder, end_at, number)],
    )
    pairs = list(zip(x, y))
    settings = {"mode": "streaming", "num_workers": 2} if streaming else {}
    loader = Loader(pairs if streaming else (x, y), BATCH, device=trainer.device, seed=3, **settings)
    result = trainer.fit(loader, epochs=EPOCHS, eval_data=(x, y))
    digest = hashlib.sha256()
    states = [trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.average.state_dict()]
    for leaf in torch.utils._pytree.tree_leaves(states):
        if isinstance(leaf, torch.Tensor):
            digest.update(leaf.detach().cpu().numpy().tobytes())
    outcome = {"weights": digest.hexdigest(), "history": result.history, "tier": result.report.tier}
    (folder / "outcome.json").write_text(json.dumps(outcome))


def run(folder: Path, *arguments: object) -> int:
    done = subprocess.run(
        [sys.executable, __file__, str(folder), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    print(done.stdout, done.stderr)
    return done.returncode


def outcome_of(folder: Path) -> tuple[dict, list[list[str]]]:
    losses: dict[int, set[str]] = {}
    for line in (folder / "losses").read_text().split("\n")[:-1]:
        step, loss = line.split()
        losses.setdefault(int(step), set()).add(loss)
    found = json.loads((folder / "outcome.json").read_text())
    return found, [sorted(losses[step]) for step in sorted(losses)]


@pytest.mark.parametrize(
    ("tier", "accumulate", "streaming"),
    [("captured", 1, 0), ("captured", 3, 0), ("captured", 1, 1), ("eager", 1, 0)],
)
def test_killed_and_stopped_runs_come_to_what_an_undisturbed_one_comes_to(tier, accumulate, streaming):
    with tempfile.TemporaryDirectory() as root:
        whole, parts = Path(root) / "whole", Path(root) / "parts"
        whole.mkdir(), parts.mkdir()
        setting = (tier, accumulate, streaming)
        assert run(whole, 0, 0, *setting) == 0
        assert run(parts, 37 // accumulate, signal.SIGKILL, *setting) == -signal.SIGKILL
        assert run(parts, 71 // accumulate, signal.SIGTERM, *setting) == 75
        assert run(parts, 0, 0, *setting) == 0
        (expected, losses), (found, resumed) = outcome_of(whole), outcome_of(parts)
    assert expected["tier"] == tier
    # One per update; a window does not reach into the next epoch.
    assert len(losses) == EPOCHS * math.ceil(13 / accumulate)
    assert resumed == losses
    assert found["weights"] == expected["weights"]
    assert found["history"] == expected["history"]


def test_captured_equals_eager_through_fit():
    data = data_of()
    histories = {}
    for tier in ("eager", "captured"):
        trainer = make(tier=tier)
        torch.manual_seed(5)
        result = trainer.fit(data, epochs=4, batch_size=BATCH, eval_data=data)
        assert result.report.tier == tier, result.report
        histories[tier] = result.history
    assert histories["eager"] == histories["captured"]


def test_the_news_of_a_nan_comes_within_the_epoch_and_the_weights_are_good():
    def step_fn(model, x, y):
        # A batch whose first target is huge has no finite loss; the device decides, so a recording can too.
        return nn.functional.mse_loss(model(x), torch.where(y > 1e6, torch.nan, y))

    x, y = data_of()
    y[77] = 1e9
    trainer = make(step_fn)
    with pytest.raises(
        NotFiniteError, match="Those updates were skipped, so the weights are those of the last"
    ):
        trainer.fit((x, y), epochs=2, batch_size=BATCH)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_rollback_on_the_device_goes_back_once_for_each_bad_batch(capsys):
    set_verbosity("normal")

    def step_fn(model, x, y):
        return nn.functional.mse_loss(model(x), torch.where(y > 1e6, torch.nan, y))

    x, y = data_of()
    y[77] = 1e9
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(step_fn, nan="rollback", checkpoint_dir=folder, save_every_steps=1)
        result = trainer.fit((x, y), epochs=2, batch_size=BATCH)
        # The bad sample comes once in each epoch.
        assert capsys.readouterr().err.count("Rolled back to step") == 2
    assert result.status == "finished"
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_the_host_does_not_wait_for_the_device_in_a_step():
    trainer = make()
    loader = Loader(data_of(), BATCH, device=trainer.device, drop_last=True)
    while trainer.train_step.tier != "captured" or trainer.train_step.report().step_s is None:
        for batch in trainer.epoch(loader):
            trainer.step(batch)
    waits = torch.cuda.get_sync_debug_mode()
    batches = iter(trainer.epoch(loader))
    batch = next(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(40):
            trainer.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode(waits)


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    train(Path(place), int(numbers[0]), int(numbers[1]), numbers[2], int(numbers[3]), int(numbers[4]))


def test_a_dry_pass_leaves_no_trace_on_the_device():
    data, found = data_of(), []
    for dry_pass in (False, True):
        trainer = make(dry_pass=dry_pass)
        torch.manual_seed(5)
        result = trainer.fit(data, epochs=4, batch_size=BATCH, eval_data=data)
        events = [event.kind for event in result.report.events]
        weights = [parameter.detach().cpu() for parameter in trainer.model.parameters()]
        found.append((result.history, result.report.tier, result.report.captures, events, weights))
    assert found[0][:4] == found[1][:4]
    assert all(map(torch.equal, found[0][4], found[1][4]))
    assert found[0][1] == "captured"


def test_the_late_report_of_a_nan_names_the_module_and_the_sample():
    x, y = data_of()
    x[77] = torch.nan
    trainer = make()
    with pytest.raises(NotFiniteError) as caught:
        trainer.fit((x, y), epochs=2, batch_size=BATCH)
    error = caught.value
    assert error.path == "0"
    assert 77 in error.samples
    assert "not finite: sample 77. Remove or repair these samples." in str(error)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
