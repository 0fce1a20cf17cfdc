"""Non-finite losses and gradients never reach the weights."""

import json
import time

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, set_verbosity
from flodl.checkpoint import list_bundles
from flodl.core import NotFiniteError
from flodl.train.faults.nonfinite import SkippedUpdates

NAN = float("nan")


class BadRoot(torch.autograd.Function):
    """A finite value with a gradient that is not finite."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * NAN


def bad_at(*updates, gradients=False):
    """Return a step function whose loss, or only its gradient, is NaN in some calls, counted from 1."""
    calls = []

    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        if not model.training:
            return loss
        calls.append(True)
        if len(calls) not in updates:
            return loss
        return BadRoot.apply(loss) if gradients else loss * NAN

    return step_fn


class Weights:
    """Keeps the weights after each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, trainer):
        self.seen.append(weights_of(trainer))


def weights_of(trainer):
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])


@pytest.mark.parametrize("gradients", [False, True])
def test_stop_keeps_the_previous_weights(make, data, gradients):
    kept = Weights()
    trainer = make(step_fn=bad_at(4, gradients=gradients), hooks=[kept])
    with pytest.raises(NotFiniteError, match=r"not finite in 1 of the updates up to 4\. Those updates were"):
        trainer.fit(data, epochs=3, batch_size=8)
    assert len(kept.seen) == 3
    assert torch.equal(weights_of(trainer), kept.seen[-1])


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_skip_continues_without_the_update(make, data, gradients, accumulate):
    kept = Weights()
    settings = {"nan": "skip", "hooks": [kept], "accumulate": accumulate}
    trainer = make(step_fn=bad_at(2 * accumulate, gradients=gradients), **settings)
    result = trainer.fit(data, epochs=2, batch_size=4)
    assert torch.equal(kept.seen[0], kept.seen[1])
    assert result.report.skipped == 1
    assert all(row["loss"] == row["loss"] for row in result.history)
    assert torch.isfinite(weights_of(trainer)).all()


def test_an_epoch_with_only_nan_is_reported(make, data):
    result = make(step_fn=bad_at(*range(1, 4)), nan="skip").fit(data, epochs=1, batch_size=8)
    assert result.metrics["loss"] != result.metrics["loss"]


@pytest.mark.parametrize("gradients", [False, True])
def test_rollback_restores_the_last_bundle_and_continues_with_the_next_batch(make, data, tmp_path, gradients):
    kept = Weights()
    trainer = make(
        step_fn=bad_at(6, gradients=gradients),
        hooks=[kept],
        nan="rollback",
        checkpoint_dir=tmp_path,
        save_every_steps=2,
        save_every=None,
        monitor=None,
    )
    result = trainer.fit(data, epochs=2, batch_size=4)
    # Step 6 was not finite, and the run is back at step 4.
    assert torch.equal(kept.seen[5], kept.seen[3])
    assert (len(kept.seen), result.steps) == (10, 8)
    alerts = [line for line in (tmp_path / "journal.jsonl").read_text().splitlines() if "Rolled back" in line]
    assert len(alerts) == 1
    assert "Rolled back to step 4" in json.loads(alerts[0])["data"]["message"]


def test_rollback_counts_skipped_updates_and_passes_the_step_of_the_weights_to_hooks(make, data, tmp_path):
    reported = []

    def on_step_end(step, loss):
        reported.append((step, bool(loss.isfinite())))

    settings = {"nan": "rollback", "checkpoint_dir": tmp_path, "save_every_steps": 2, "save_every": None}
    trainer = make(step_fn=bad_at(4, 6, 9), hooks=[on_step_end], **settings)
    result = trainer.fit(data, epochs=2, batch_size=4)
    assert result.report.skipped == 3
    assert [step for step, is_good in reported if not is_good] == [2, 2, 4]
    assert result.steps == reported[-1][0]
    again = make(checkpoint_dir=tmp_path, nan="rollback").fit(data, epochs=3, batch_size=4)
    assert again.report.skipped == 3


def test_rollback_gives_up_after_a_few_times(make, data, tmp_path, capsys):
    set_verbosity("normal")
    trainer = make(step_fn=bad_at(*range(6, 99)), nan="rollback", checkpoint_dir=tmp_path, save_every_steps=1)
    with pytest.raises(NotFiniteError, match="The run was already rolled back 3 times"):
        trainer.fit(data, epochs=9, batch_size=4)
    assert capsys.readouterr().err.count("Rolled back to step 5") == 3


def test_rollback_without_a_bundle_raises(make, data, tmp_path):
    trainer = make(step_fn=bad_at(2), nan="rollback", checkpoint_dir=tmp_path)
    with pytest.raises(NotFiniteError, match="There is no bundle to roll back to yet"):
        trainer.fit(data, epochs=1, batch_size=4)


class Damaging:
    """Damages the bundle of a step once it is on disk."""

    def __init__(self, of: int) -> None:
        self.of = of

    def on_step_end(self, trainer, step):
        if step != self.of + 1:
            return
        end = time.monotonic() + 30
        while not (found := list(trainer.run_dir.glob(f"bundles/step-*{self.of}/model.fdl"))):
            assert time.monotonic() < end
            time.sleep(0.01)
        found[0].write_bytes(b"x" * found[0].stat().st_size)


def test_rollback_skips_a_damaged_bundle_and_moves_it_away(make, data, tmp_path):
    kept = Weights()
    trainer = make(
        step_fn=bad_at(6),
        hooks=[Damaging(4), kept],
        nan="rollback",
        checkpoint_dir=tmp_path,
        save_every_steps=2,
        save_every=None,
        monitor=None,
    )
    trainer.fit(data, epochs=2, batch_size=4)
    assert torch.equal(kept.seen[5], kept.seen[1])
    assert "Rolled back to step 2" in (tmp_path / "journal.jsonl").read_text()
    assert len(list((tmp_path / "bundles.damaged").iterdir())) == 1


def test_rollback_with_only_damaged_bundles_describes_the_damage(make, data, tmp_path):
    trainer = make(
        step_fn=bad_at(4), hooks=[Damaging(2)], nan="rollback", checkpoint_dir=tmp_path, save_every_steps=2
    )
    with pytest.raises(NotFiniteError, match=r"there is a bundle that is not intact: .*step-.*is damaged"):
        trainer.fit(data, epochs=1, batch_size=4)


def test_a_stopped_run_can_be_resumed_from_its_last_bundle(make, data, tmp_path):
    with pytest.raises(NotFiniteError):
        make(step_fn=bad_at(8), checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=4)
    result = make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=4)
    assert result.history == make().fit(data, epochs=3, batch_size=4).history


def test_the_last_window_of_an_epoch_is_checked_too(make, data):
    trainer = make(step_fn=bad_at(5), accumulate=3)
    with pytest.raises(NotFiniteError):
        trainer.fit(data, epochs=1, batch_size=4)


def test_the_search_for_a_loss_scale_does_not_stop_the_run(make, data):
    # The first scale, 65536, is too large for this loss: a few updates are skipped until it fits.
    trainer = make(
        step_fn=lambda model, x, y: nn.functional.mse_loss(model(x), y) * 100,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-4),
        precision="fp16",
    )
    result = trainer.fit(data, epochs=4, batch_size=4)
    assert 0 < result.report.skipped < 20
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_fp16_stops_if_no_loss_scale_helps(make, data):
    trainer = make(step_fn=bad_at(*range(3, 99)), precision="fp16")
    with pytest.raises(NotFiniteError, match="not finite in 24 of the updates up to"):
        trainer.fit(data, epochs=9, batch_size=4)


def test_the_check_can_require_several_skips_in_a_row():
    count = torch.zeros((), dtype=torch.float64)
    watch = SkippedUpdates(count, in_a_row=3)
    reported = []
    for skipped in (1, 1, 0, 1, 1, 1, 1):
        count += skipped
        reported.append(watch.check(len(reported) + 1))
        assert watch.settle(len(reported)) in (0, reported[-1])
    assert reported == [0, 0, 0, 0, 0, 3, 4]


def test_the_check_reports_each_skipped_update_once():
    count = torch.zeros((), dtype=torch.float64)
    watch = SkippedUpdates(count)
    count += 2
    assert [watch.check(2), watch.check(3), watch.settle(3)] == [2, 0, 0]
    count.fill_(1)  # after a rollback, the count is that of the bundle
    watch.forget(1)
    assert watch.check(2) == 0
    count += 1
    assert watch.settle(3) == 1


class Arrived:
    """A CUDA event that is always complete."""

    def record(self):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Return a function that makes the check behave as on a GPU."""
    monkeypatch.setattr(torch.cuda, "Event", Arrived)

    def simulate(watch):
        watch._on_host = torch.zeros_like(watch._count)
        return watch

    return simulate


@pytest.mark.parametrize("resumed_at", [0, 5, 16, 37, 40])
def test_a_resumed_run_checks_at_the_same_updates_as_an_undisturbed_one(as_on_a_device, resumed_at):
    count = torch.zeros((), dtype=torch.float64)
    watch = as_on_a_device(SkippedUpdates(count))
    watch.forget(resumed_at)
    reported = []
    for update in range(resumed_at + 1, 200):
        count += update == 45
        reported += [update] * watch.check(update)
    assert reported == [64]


def test_no_bundle_contains_an_unhandled_skipped_update(make, data, tmp_path, as_on_a_device):
    trainer = make(step_fn=bad_at(4), checkpoint_dir=tmp_path, save_every_steps=3)
    as_on_a_device(trainer._run.session.skipped)
    with pytest.raises(NotFiniteError, match="not finite in 1 of the updates up to 6"):
        trainer.fit(data, epochs=1, batch_size=2)
    assert [bundle.step for bundle in list_bundles(tmp_path / "bundles")] == [3]


def test_consecutive_skipped_updates_are_counted_across_a_resume(make, data, tmp_path):
    def trainer():
        return make(step_fn=bad_at(*range(1, 99)), precision="fp16", checkpoint_dir=tmp_path)

    for epochs in (2, 3):
        trainer().fit(data, epochs=epochs, batch_size=4)
    with pytest.raises(NotFiniteError, match="not finite in 24 of the updates up to 24"):
        trainer().fit(data, epochs=9, batch_size=4)


class Carrying(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x, before=None):
        return self.line(x) if before is None else self.line(x) + 0.1 * before


def test_rollback_restores_carried_values(make, data, tmp_path):
    def step_fn(model, x, y):
        carried.append(model._memory.carried[0])
        return nn.functional.mse_loss(model(x), y)

    carried = []
    torch.manual_seed(0)
    graph = FlowBuilder(Carrying()).using("before").tag("before").build()
    data[0][12] = NAN
    settings = {"nan": "rollback", "checkpoint_dir": tmp_path, "save_every_steps": 1}
    trainer = make(graph, step_fn, **settings)
    batches = [tuple(part[i : i + 4] for part in data) for i in range(0, 20, 4)]
    result = trainer.fit(batches, epochs=1)
    assert result.report.skipped == 1
    assert all(value is None or value.isfinite().all() for value in carried)


def means_after_rollback(make, data, tmp_path, *, bad, **settings):
    """Return the mean losses of two epochs, of losses 1 and 3, with one NaN batch."""
    calls = []

    def step_fn(model, x, y):
        calls.append(True)
        loss = 0 * model(x).mean() + (1.0 if len(calls) <= 5 else 3.0)
        return loss * NAN if len(calls) == bad else loss

    trainer = make(step_fn=step_fn, nan="rollback", checkpoint_dir=tmp_path, **settings)
    return [row["loss"] for row in trainer.fit(data, epochs=2, batch_size=4).history]


@pytest.mark.parametrize("bad", [6, 8, 10])
@pytest.mark.parametrize("settings", [{}, {"save_every": None, "save_every_steps": 3}])
def test_rollback_keeps_the_means_of_the_epoch(make, data, tmp_path, bad, settings):
    assert means_after_rollback(make, data, tmp_path, bad=bad, **settings) == [1.0, 3.0]


def test_a_bundle_after_a_rollback_has_no_metrics_of_other_weights(make, data, tmp_path):
    def on_step_end(trainer, loss):
        if not loss.isfinite():
            trainer.save()

    make(step_fn=bad_at(7), nan="rollback", checkpoint_dir=tmp_path, hooks=[on_step_end]).fit(
        data, epochs=2, batch_size=4
    )
    bundles = {bundle.step: bundle for bundle in list_bundles(tmp_path / "bundles")}
    assert bundles[5].metrics == {}
