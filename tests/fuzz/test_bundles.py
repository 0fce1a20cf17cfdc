"""Bundles: what can be saved can be loaded, mutated ones are skipped, forged ones change nothing or load."""

import os
import random
from contextlib import suppress
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Loader, Trainer, set_verbosity
from flodl.checkpoint import latest_bundle, read_bundle, save_bundle, snapshot_cpu
from flodl.core import CheckpointError, FlodlError
from flodl.graph import graph_state
from flodl.nn import StateAdd
from flodl.optim import PlateauScheduler
from flodl.train import EarlyStopping

from .forgeries import forge
from .mutations import TENSORS, mutate, same_tensors
from .tensors import DTYPES, bits, random_tensor, random_tensors, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Most of the time would be spent flushing files to disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_what_can_be_saved_in_a_bundle_can_be_read(fuzz, tmp_path):
    def check(rng: random.Random) -> None:
        state = {"model": random_tensors(rng), "more": [random_tensors(rng, most=2), (1, None)]}
        state = snapshot_cpu(state) if rng.random() < 0.3 else state
        back = read_bundle(save_bundle(tmp_path, rng.randrange(3), state))
        assert same_bits(back["model"], state["model"])
        assert same_bits(back["more"][0], state["more"][0])

    fuzz(check)


def test_a_mutated_bundle_is_skipped(fuzz, tmp_path, capsys):
    state = {"model": dict(TENSORS), "data": {"position": 7}}
    save_bundle(tmp_path, 1, state)
    path = save_bundle(tmp_path, 2, state)
    files = {file.name: file.read_bytes() for file in path.iterdir()}

    def check(rng: random.Random) -> None:
        name = rng.choice(sorted(files))
        data = mutate(files[name], rng)
        (path / name).write_bytes(data)
        bundle, _ = latest_bundle(tmp_path)
        # Extra whitespace or a longer number does not change a manifest.
        assert bundle.step == 1 or name == "manifest.json" or data == files[name]
        assert same_tensors(read_bundle(bundle)["model"], TENSORS)
        with suppress(CheckpointError):
            assert same_tensors(read_bundle(path)["model"], TENSORS)
        (path / name).write_bytes(files[name])

    fuzz(check)
    capsys.readouterr()


class Model(nn.Module):
    """A graph with a carried value, and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        chain = FlowBuilder(nn.Linear(2, 3)).through(StateAdd()).using("memory").tag("memory")
        self.inner = chain.through(nn.LayerNorm(3)).through(nn.Linear(3, 1)).build()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.register_buffer("shared", torch.ones(1).expand(3))

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        self.inner.detach_state()
        return out


class Counter:
    """A hook with a state that it does not check."""

    def __init__(self) -> None:
        self.seen = {"epochs": 0, "last": torch.zeros(2)}

    def on_epoch_end(self) -> None:
        self.seen["epochs"] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": dict(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = {"epochs": int(state["seen"]["epochs"]), "last": state["seen"]["last"] + 0}


DATA = torch.linspace(-1, 1, 12).reshape(6, 2), torch.linspace(0, 1, 6).reshape(6, 1)
OPTIMIZERS = {
    "adam": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, centered=True, momentum=0.5),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
}


def make(optimizer: str, folder: Any = None, hooks: tuple[Any, ...] = ()) -> Trainer:
    torch.manual_seed(1)
    return Trainer(
        Model(),
        lambda model, x, y: (model(x) - y).square().mean(),
        optimizer=OPTIMIZERS[optimizer],
        schedule=PlateauScheduler(0.01, 2, 0.5) if optimizer == "sgd" else None,
        ema=0.9 if optimizer == "adam" else None,
        hooks=hooks or make_hooks(),
        checkpoint_dir=folder,
        tier="eager",
        device="cpu",
        monitor=False,
        seed=0,
    )


def make_hooks() -> tuple[Any, ...]:
    return EarlyStopping("loss", patience=50), Counter()


def comparable(value: Any) -> Any:
    if isinstance(value, Tensor):
        return bits(value)
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return [(repr(key), comparable(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return repr(value)


def state_of(trainer: Trainer, loader: Loader, hooks: tuple[Any, ...]) -> Any:
    """Return everything that loading can change, as comparable data."""
    step, graphs = trainer.train_step.state_dict(), graph_state(trainer.model)
    step["means"] = [[names, sums] for names, sums in step["means"] if any(sums)]
    del graphs["inner"]["book"]["elapsed_s"]
    return comparable(
        {
            "model": trainer.model.state_dict(),
            "buffers": dict(trainer.model.named_buffers()),
            "modes": [module.training for module in trainer.model.modules()],
            "trainable": [parameter.requires_grad for parameter in trainer.model.parameters()],
            "optimizer": trainer.optimizer.state_dict(),
            "step": step,
            "average": trainer.average.state_dict() if hasattr(trainer, "average") else {},
            "loader": loader.state_dict(),
            "hooks": [hook.state_dict() for hook in hooks],
            "progress": [trainer.history, trainer.epochs, trainer.updates, trainer.stop_reason],
            "rng": torch.get_rng_state(),
            "numpy": list(numpy.random.get_state())[:3],
            "python": random.getstate(),
            "graphs": graphs,
        }
    )


@pytest.fixture(scope="module")
def valid_parts(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """Return the parts of a valid bundle for each optimizer."""
    found = {}
    with torch.random.fork_rng(devices=[]):
        for name in OPTIMIZERS:
            folder = tmp_path_factory.mktemp(name)
            make(name, folder).fit(DATA, epochs=2, batch_size=3)
            bundle = latest_bundle(folder / "bundles").bundle
            found[name] = snapshot_cpu(read_bundle(bundle))
    return found


@pytest.fixture
def own_random_state():
    """Restore the random numbers of other tests; forged bundles set them."""
    set_verbosity("quiet")
    python, array = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    numpy.random.set_state(array)
    set_verbosity("normal")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_forged_bundle_changes_nothing_or_loads(fuzz, valid_parts, tmp_path, own_random_state):
    """A forged bundle that loads must train, or fail with an error of flodl."""

    def check(rng: random.Random) -> None:
        name = rng.choice(sorted(OPTIMIZERS))
        parts, what = forge(valid_parts[name], rng)
        folder = tmp_path / str(rng.random())
        try:
            path = save_bundle(folder / "bundles", 4, parts)
        except CheckpointError:
            return  # junk that cannot be saved
        in_own_folder = rng.random() < 0.5
        hooks = make_hooks()
        trainer = make(name, folder if in_own_folder else None, hooks)
        loader = trainer.loader(DATA, 3)
        before = state_of(trainer, loader, hooks)
        try:
            try:
                trainer.resume(DATA, 3, how="auto" if in_own_folder else path)
            except FlodlError:
                assert state_of(trainer, loader, hooks) == before
                return
            trainer.fit(DATA, epochs=len(trainer.history) + 1, batch_size=3)
        except FlodlError:
            pass
        except BaseException as error:
            # Only the modules know which values they carry from one call to the next.
            if "'carried'" in what and any("flodl: at" in note for note in getattr(error, "__notes__", ())):
                return
            error.add_note(f"forged: {what}")
            raise

    fuzz(check)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_valid_bundle_resumes_with_the_same_losses(valid_parts, tmp_path, own_random_state, optimizer):
    whole = make(optimizer).fit(DATA, epochs=4, batch_size=3)
    path = save_bundle(tmp_path, 4, valid_parts[optimizer])
    resumed = make(optimizer).fit(DATA, epochs=4, batch_size=3, resume=path)
    assert resumed.history == whole.history


class Everything(nn.Module):
    """A model with a buffer of a random type and layout."""

    def __init__(self, buffers: dict[str, Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        for index, buffer in enumerate(buffers.values()):
            self.register_buffer(f"buffer_{index}", buffer, persistent=index % 2 == 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_with_buffers_of_any_type_and_layout_resumes(fuzz, tmp_path, own_random_state):
    def trainer(buffers: dict[str, Tensor], folder: Any) -> Trainer:
        return Trainer(
            Everything(buffers),
            lambda model, x, y: (model(x) - y).square().mean(),
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
            checkpoint_dir=folder,
            tier="eager",
            device="cpu",
            monitor=False,
            seed=0,
        )

    def check(rng: random.Random) -> None:
        folder = tmp_path / str(rng.random())
        buffers = random_tensors(rng, most=4)
        first = trainer(buffers, folder)
        first.fit(DATA, epochs=1, batch_size=3)
        others = {name: random_tensor(rng, t.dtype, tuple(t.shape)) for name, t in buffers.items()}
        ties = {id(tensor): others[name] for name, tensor in buffers.items()}
        second = trainer({name: ties[id(tensor)] for name, tensor in buffers.items()}, folder)
        second.fit(DATA, epochs=2, batch_size=3)
        one, two = dict(first.model.named_buffers()), dict(second.model.named_buffers())
        assert [bits(tensor) for tensor in one.values()] == [bits(tensor) for tensor in two.values()]

    fuzz(check)


def test_every_type_is_tried():
    assert {torch.complex128, torch.bool, torch.uint64, torch.bits16, torch.float8_e5m2} <= set(DTYPES)
