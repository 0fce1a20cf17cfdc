"""A saved run is checked before it is loaded, and a load that fails is undone."""

import pytest
import torch
from torch import nn

from flodl.checkpoint import latest_bundle, read_bundle, save_bundle
from flodl.core import CheckpointError, FlodlError, TrainError


def adam(groups):
    return torch.optim.AdamW(groups, lr=0.01)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Return a folder for the one run whose parts the tests forge."""
    return tmp_path_factory.mktemp("saved") / "run"


@pytest.fixture
def saved(make, data, run_dir, tmp_path):
    """Return the parts of a run, and a function that saves them again and returns the bundle."""
    if not run_dir.exists():
        make(optimizer=adam, checkpoint_dir=run_dir).fit(data, epochs=1, batch_size=8)
    bundle = latest_bundle(run_dir / "bundles").bundle
    return read_bundle(bundle), lambda parts: save_bundle(tmp_path / "forged", bundle.step, parts)


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def assert_rejected(trainer, data, bundle, error=TrainError, match="Nothing was loaded"):
    before, random = weights(trainer), torch.get_rng_state()
    with pytest.raises(error, match=match):
        trainer.fit(data, epochs=2, batch_size=8, resume=bundle)
    assert all(map(torch.equal, before, weights(trainer)))
    assert torch.equal(torch.get_rng_state(), random)
    assert (trainer.updates, trainer.epochs, len(trainer.optimizer.state)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda state: state.pop("exp_avg"), "parameter 0 of group 0 has no 'exp_avg'"),
        (lambda state: state.update(exp_avg=torch.zeros(2)), r"'exp_avg' of parameter 0 has shape \(2,\)"),
        (lambda state: state.update(exp_avg="x"), "'exp_avg' of parameter 0 is 'x', expected a tensor"),
        (lambda state: state.update(exp_avg=state["exp_avg"] * 1j), "is of torch.complex64"),
        (lambda state: state.update(step=torch.tensor(-1.0)), "'step' of parameter 0 is .* not a count"),
        (lambda state: state.update(step=torch.tensor(torch.nan)), "'step' of parameter 0 is .* not a count"),
        (lambda state: state.update(step="one"), "'step' of parameter 0 is 'one', expected a number"),
    ],
)
def test_an_optimizer_state_that_would_fail_in_the_next_update_is_rejected(make, data, saved, change, match):
    parts, save = saved
    change(parts["optimizer"]["state"][0])
    assert_rejected(make(optimizer=adam), data, save(parts), match=f"(?s){match}.*Nothing was loaded")


@pytest.mark.parametrize("setting", [{"lr": "fast"}, {"betas": (0.9,)}, {"eps": None}, {"lr": 10**400}])
def test_a_setting_of_another_type_is_rejected(make, data, saved, setting):
    parts, save = saved
    parts["optimizer"]["param_groups"][0] |= setting
    match = f"{next(iter(setting))!r} of group 0 is .*Nothing was loaded"
    assert_rejected(make(optimizer=adam), data, save(parts), match=match)


def test_the_implementation_of_the_optimizer_is_that_of_the_program(make, data, saved):
    """A bundle of a run on CUDA has fused and capturable updates, which the CPU does not have."""
    parts, save = saved
    parts["optimizer"]["param_groups"][0] |= {"fused": True, "capturable": True, "lr": torch.tensor(0.01)}
    trainer = make(optimizer=adam)
    trainer.fit(data, epochs=2, batch_size=8, resume=save(parts))
    group = trainer.optimizer.param_groups[0]
    assert (group["fused"], group["capturable"]) == (None, False)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("trainer", "modes", {"frozen": 3}),
        ("trainer", "epoch_step", -1),
        ("trainer", "open_row", {"epoch": 1}),
        ("trainer", "structural_hashes", [1]),
        ("trainer", "structures", {"": {"structural_hash": 1}}),
        ("rng", "torch", torch.zeros(3, dtype=torch.uint8)),
        ("rng", "python", (3, (1, 2), None)),
        ("rng", "numpy", ["MT19937", torch.zeros(3, dtype=torch.int64), 0, 0, 0.0]),
        ("step", "updates", 2**70),
        ("step", "means", [["loss"]]),
        ("data", "epoch", "first"),
        ("model", "0.weight", torch.zeros(8, 3, dtype=torch.complex64)),
        ("model", "0.weight", 3),
    ],
)
def test_a_part_with_other_contents_is_rejected(make, data, saved, part, key, value):
    parts, save = saved
    parts[part] = {**parts[part], key: value}
    assert_rejected(make(optimizer=adam), data, save(parts), error=FlodlError, match=None)


@pytest.mark.parametrize(
    "name", ["model", "optimizer", "step", "rng", "trainer", "hooks", "history", "graphs"]
)
@pytest.mark.parametrize("value", [None, 3, "x", [1], torch.zeros(2)])
def test_a_part_of_another_type_is_rejected(make, data, saved, name, value):
    parts, save = saved
    assert_rejected(make(optimizer=adam), data, save({**parts, name: value}), error=FlodlError, match=None)


class Hook:
    """A hook that counts epochs, and fails on a state with a certain number."""

    def __init__(self, refuses=None):
        self.count, self.refuses = 0, refuses

    def on_epoch_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        if self.count == self.refuses:
            raise KeyError("count")


def test_a_hook_that_cannot_load_its_state_leaves_everything_unchanged(make, data, tmp_path):
    make(optimizer=adam, hooks=[Hook(), Hook()], checkpoint_dir=tmp_path, ema=0.9).fit(
        data, epochs=1, batch_size=8
    )
    hooks = [Hook(), Hook(refuses=1)]
    trainer = make(optimizer=adam, hooks=hooks, checkpoint_dir=tmp_path, ema=0.9)
    before = weights(trainer)
    average = {name: value.clone() for name, value in trainer.average.state_dict().items()}
    with pytest.raises(TrainError, match=r"cannot be loaded: KeyError: 'count'\. Nothing was changed"):
        trainer.fit(data, epochs=2, batch_size=8)
    assert all(map(torch.equal, before, weights(trainer)))
    assert all(torch.equal(average[name], value) for name, value in trainer.average.state_dict().items())
    assert (trainer.updates, trainer.epochs, len(trainer.optimizer.state)) == (0, 0, 0)
    assert [hook.count for hook in hooks] == [0, 0]
    hooks[1].refuses = None
    assert trainer.fit(data, epochs=2, batch_size=8).steps == 6


class WithExtraState(nn.Linear):
    """A layer whose extra state may be rejected."""

    extra = 0

    def get_extra_state(self):
        return {"extra": self.extra}

    def set_extra_state(self, state):
        self.extra = int(state["extra"])


def test_a_model_that_rejects_its_extra_state_stays_as_it_is(make, data, tmp_path):
    make(WithExtraState(3, 1), optimizer=adam, checkpoint_dir=tmp_path / "run").fit(
        data, epochs=1, batch_size=8
    )
    bundle = latest_bundle(tmp_path / "run" / "bundles").bundle
    parts = read_bundle(bundle)
    parts["model"]["_extra_state"] = {"extra": "x"}
    forged = save_bundle(tmp_path / "forged", bundle.step, parts)
    assert_rejected(make(WithExtraState(3, 1), optimizer=adam), data, forged, match="Nothing was changed")


def test_tied_weights_with_different_saved_values_are_rejected(make, data, tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 1)
            self.two = nn.Linear(3, 1)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.one(x) + self.two(x)

    make(Tied(), optimizer=adam, checkpoint_dir=tmp_path / "run").fit(data, epochs=1, batch_size=8)
    bundle = latest_bundle(tmp_path / "run" / "bundles").bundle
    parts = read_bundle(bundle)
    parts["model"]["two.weight"] = parts["model"]["two.weight"] + 1
    forged = save_bundle(tmp_path / "forged", bundle.step, parts)
    assert_rejected(make(Tied(), optimizer=adam), data, forged, CheckpointError, "the model ties the two")


def test_a_rollback_to_a_forged_bundle_is_rejected(make, data, tmp_path):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        return loss * float("nan") if trainer.epochs else loss

    def on_save(path, step):
        parts = read_bundle(path)
        parts["optimizer"]["state"][0]["exp_avg"] = torch.zeros(1)
        save_bundle(path.parent, step, parts)

    trainer = make(step_fn=step_fn, optimizer=adam, checkpoint_dir=tmp_path, nan="rollback", hooks=[on_save])
    with pytest.raises(TrainError, match=r"'exp_avg' of parameter 0 has shape \(1,\)"):
        trainer.fit(data, epochs=2, batch_size=8)
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


KINDS = ["Adadelta", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop", "RMSprop", "Adagrad"]


@pytest.mark.slow
def test_optimizers_of_torch_and_of_users_resume(make, data, tmp_path):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["seen"] = torch.ones(3, 3)

    built = [
        *(
            lambda groups, kind=kind: getattr(torch.optim, kind)(groups, lr=0.01)
            for kind in (
                "Adadelta",
                "Adam",
                "Adamax",
                "ASGD",
                "NAdam",
                "RAdam",
                "Rprop",
                "RMSprop",
                "Adagrad",
            )
        ),
        lambda groups: torch.optim.Adafactor(groups, lr=0.01),
        lambda groups: Own(groups, lr=0.01),
        lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True),
    ]
    for index, optimizer in enumerate(built):
        whole = make(optimizer=optimizer).fit(data, epochs=2, batch_size=8)
        for epochs in (1, 2):
            trainer = make(optimizer=optimizer, checkpoint_dir=tmp_path / str(index))
            result = trainer.fit(data, epochs=epochs, batch_size=8)
        assert result.history == whole.history


def test_a_buffer_whose_elements_share_memory_resumes(make, data, tmp_path):
    class Expanded(nn.Linear):
        def __init__(self, value):
            super().__init__(3, 1)
            self.register_buffer("scale", torch.full((1,), value).expand(4))

    make(Expanded(2.0), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    trainer = make(Expanded(3.0), checkpoint_dir=tmp_path)
    trainer.fit(data, epochs=2, batch_size=8)
    assert trainer.model.scale.tolist() == [2.0] * 4
