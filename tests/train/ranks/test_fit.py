"""`Trainer(devices=…)`: the same result and the same rows as on one device, whatever the number of ranks."""

import time

import pytest
import torch

from flodl.monitor import Monitor, read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_reach_the_quality_of_one_device_and_cover_each_sample_once(make, data, supervision, num_ranks):
    alone = make(device="cpu").fit(data, epochs=6, batch_size=4, eval_data=data)
    trainer = make(devices=["cpu"] * num_ranks)
    model = trainer.model
    result = trainer.fit(data, epochs=6, batch_size=4, eval_data=data)
    supervision.check_coverage(240, range(6))
    assert [list(row) for row in result.history] == [list(row) for row in alone.history]
    assert result.steps == alone.steps == trainer.updates == 360
    # The problem is convex, and both runs end close to its minimum, which is 0.
    assert result.metrics["eval_loss"] < 1e-3
    assert alone.metrics["eval_loss"] < 1e-3
    assert torch.allclose(model.weight, torch.tensor([[1.0, -2.0, 3.0, 0.5]]), atol=0.05)


def test_the_model_of_the_user_has_the_consensus_and_is_evaluated_with_it(make, data):
    trainer = make()
    result = trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    error = trainer.model(data[0]) - data[1]
    assert result.metrics["eval_loss"] == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert trainer.evaluate(data)["loss"] == pytest.approx(result.metrics["eval_loss"], rel=1e-5)
    assert trainer.epochs == 2
    assert result.status == "finished"


def test_the_loss_of_an_epoch_is_the_mean_over_all_samples(make, supervision):
    x = torch.arange(60.0).reshape(60, 1)
    trainer = make(
        torch.nn.Linear(1, 1),
        lambda model, x: (0.0 * model(x)).mean() + x.mean(),
        devices=["cpu", "cpu", "cpu"],
    )
    result = trainer.fit(x, epochs=2, batch_size=7)
    assert [row["loss"] for row in result.history] == [pytest.approx(29.5)] * 2
    assert result.steps == 18


def test_a_second_call_of_fit_continues(make, data, supervision):
    trainer = make()
    trainer.fit(data, epochs=1, batch_size=8)
    loss = trainer.history[0]["loss"]
    result = trainer.fit(data, epochs=3, batch_size=8)
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert result.steps == 90
    assert result.metrics["loss"] < loss
    supervision.check_coverage(240, range(3))


def test_the_duration_of_an_epoch_leaves_out_the_start_of_the_ranks_in_every_call(make, data, tmp_path):
    took_s = []
    with Monitor(2, tmp_path, console=False, resources=False) as monitor:
        trainer = make(monitor=monitor)
        for epochs in (1, 2):
            started_s = time.perf_counter()
            trainer.fit(data, epochs=epochs, batch_size=8)
            took_s.append(time.perf_counter() - started_s)
    durations_s = [entry.event.data["duration_s"] for entry in read(tmp_path) if entry.event.kind == "epoch"]
    # The processes import torch first, which takes far longer than an epoch.
    assert all(epoch_s < 0.5 * whole_s for epoch_s, whole_s in zip(durations_s, took_s, strict=True))


def test_accumulation_makes_the_same_updates_and_the_last_one_is_smaller(make, data, supervision):
    result = make(accumulate=3).fit(data, epochs=2, batch_size=16)
    # 15 batches are 5 updates.
    assert result.steps == 10
    result = make(accumulate=4).fit(data, epochs=1, batch_size=16)
    assert result.steps == 4
    assert result.ranks.samples == 240


def test_a_limit_ends_each_epoch_early(make, data):
    result = make().fit(data, epochs=2, batch_size=8, limit=5)
    assert (result.steps, result.ranks.samples) == (10, 80)


def test_the_model_has_the_averaged_buffers_and_integer_buffers(make, data):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    make(model).fit(data, epochs=2, batch_size=8)
    assert int(model[0].num_batches_tracked) > 0
    assert not torch.equal(model[0].running_mean, torch.zeros(4))


def test_the_report_says_what_each_rank_did(make, data):
    result = make(devices=["cpu"] * 3).fit(data, epochs=2, batch_size=4)
    found = result.ranks
    assert found.policy == "cadence"
    assert sum(rank.updates for rank in found.ranks) == 120
    assert sum(rank.samples for rank in found.ranks) == found.samples == 480
    assert found.syncs >= 2
    assert 0.0 <= found.idle <= 1.0
    assert all(rank.num_bytes > 0 and not rank.lost for rank in found.ranks)
    assert "rank 2 on cpu" in str(found)
    assert make(device="cpu").fit(data, epochs=1, batch_size=4).ranks is None


@pytest.mark.parametrize("outer", ["slow_momentum", "nesterov"])
def test_outer_optimizers_train(make, data, outer):
    result = make(outer=outer, wire="bf16").fit(data, epochs=4, batch_size=4)
    assert result.metrics["loss"] < 0.1 * result.history[0]["loss"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_device_is_bit_identical_to_the_plain_trainer(make, data, count):
    settings = {"devices": ["cpu"]} if count == 1 else {"devices": 1}
    models = []
    for options in ({"device": "cpu"}, settings):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        trainer = make(model, **options)
        models.append((model, trainer.fit(data, epochs=2, batch_size=8)))
    (one, first), (other, second) = models
    assert first.history == second.history
    assert second.ranks is None
    for mine, theirs in zip(one.parameters(), other.parameters()):
        assert torch.equal(mine, theirs)


@pytest.fixture
def changed_flags():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)


def test_ranks_have_the_global_flags_of_torch_that_the_program_set(make, data, changed_flags):
    def step_fn(model, x, y):
        from torch.backends import cudnn

        found = [
            torch.get_float32_matmul_precision() == "high",
            cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ]
        return (model(x) - y).square().mean(), {"flags": torch.tensor(float(sum(found)))}

    result = make(step_fn=step_fn).fit(data, epochs=1, batch_size=8)
    assert result.metrics["flags"] == 4.0


def test_the_report_and_the_run_log_name_the_link_between_ranks(make, data, supervision):
    result = make().fit(data, epochs=1, batch_size=8)
    assert result.ranks.link == "gloo: all ranks are on the CPU"
    assert [record["rank"] for record in supervision.kinds("link")] in ([0, 1], [1, 0])


def test_differences_from_one_device_are_reported_once(make, data, capsys):
    calls = {"steps": 0}

    def loss_of(model, x, y):
        calls["steps"] += 1
        return (model(x) - y).square().mean()

    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.BatchNorm1d(1))
    make(model, loss_of, policy="sync", monitor=True).fit(data, epochs=2, batch_size=8)
    shown = "".join(capsys.readouterr())
    assert shown.count("policy='sync': BatchNorm1d ('1') normalizes") == 1
    assert shown.count("the step function changes 'calls'") == 1
