"""The fast path of a recorded step: what it checks before every replay. The replay itself needs a GPU."""

from __future__ import annotations

import operator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.engine.batch.signature import same_layout
from flodl.engine.capture.dependencies import Dependencies
from flodl.engine.capture.lane import fast_lane
from flodl.engine.capture.recording import Recording
from flodl.engine.capture.static_state import StaticState
from flodl.engine.capture.stored_values import StoredValues
from flodl.engine.internals import body_of
from flodl.engine.program.carried import Carried
from flodl.observe import CarriedValues, LastValues


class Replays:
    """Stands in for a CUDA graph, and counts its replays."""

    def __init__(self) -> None:
        self.count = 0

    def replay(self) -> None:
        self.count += 1


class Ready:
    """A step after its first update, and the fast path over a recording of it."""

    def __init__(self, *others: nn.Module, frozen: bool = False, tagged: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2), *others)
        self.model[0].requires_grad_(not frozen)
        # Neither the first nor the last.
        self.model[1].images = nn.Parameter(torch.zeros(2, 3, 4, 5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=torch.tensor(0.1))
        step = TrainStep(self.model, self.optimizer, lambda m, x, y: (m(x) - y).square().mean(), tier="eager")
        self.batch = torch.zeros(5, 3), torch.zeros(5, 2)
        step(*self.batch)
        self.optimizer.param_groups[0]["betas"] = [0.9, 0.99]
        self.body = body_of(step)
        self.body.updater.rates = [(group, group["lr"]) for group in self.optimizer.param_groups]
        # What a recording consists of and depends on, without a device to record on.
        self.dependencies = Dependencies(self.body, update_inside=True)
        self.graph = Replays()
        result = SimpleNamespace(loss=torch.ones(()))
        inputs = [tensor.clone() for tensor in self.batch]
        self.recording = Recording(self.graph, inputs, result, (), same_layout(self.batch))  # type: ignore[arg-type]
        self.state: StaticState | None = None
        self.tags = LastValues(())
        self.stored = StoredValues([self.tags])
        if tagged:
            self.stored.watching(lambda: setattr(self.tags, "values", (torch.zeros(2),)))()
            self.stored.show()

    def lane(self, turns: int):
        """Return the fast path; None if there is none."""
        return fast_lane(self.recording, self.stored, self.dependencies, turns, self.state)

    def replays(self, *batch: Tensor, turns: int = 10) -> bool:
        """Return whether the fast path replays a batch."""
        lane = self.lane(turns)
        assert lane is not None
        before = self.graph.count
        given = lane(batch or self.batch)
        assert (given is not None) is (self.graph.count > before)
        return given is not None


@pytest.mark.parametrize("frozen", [False, True])
def test_a_step_like_the_last_one_is_replayed(frozen: bool) -> None:
    assert Ready(frozen=frozen).replays()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda ready: ready.model[2].requires_grad_(False),
        lambda ready: ready.model[1].eval(),
        lambda ready: ready.model.eval(),
        lambda ready: ready.optimizer.param_groups[0].update(betas=(0.8, 0.99)),
        lambda ready: ready.optimizer.state.clear(),
        lambda ready: ready.optimizer.load_state_dict(ready.optimizer.state_dict()),
        lambda ready: ready.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        lambda ready: ready.model.double(),
        lambda ready: operator.setitem(ready.optimizer.param_groups, 0, {**ready.optimizer.param_groups[0]}),
        lambda ready: ready.optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1))),
        lambda ready: operator.setitem(ready.optimizer.param_groups[0]["betas"], 0, 0.5),
        lambda ready: ready.model.to(memory_format=torch.channels_last),
    ],
    ids=[
        "frozen",
        "one evaluates",
        "all evaluate",
        "setting",
        "cleared",
        "loaded",
        "group",
        "moved",
        "group replaced",
        "parameter added",
        "setting written into",
        "images turned",
    ],
)
def test_a_change_to_what_a_recording_depends_on_prevents_the_replay(frozen: bool, change) -> None:
    ready = Ready(frozen=frozen)
    change(ready)
    assert not ready.replays()


def test_unfreezing_a_part_prevents_the_replay() -> None:
    ready = Ready(frozen=True)
    ready.model[0].requires_grad_(True)
    assert not ready.replays()


def test_batches_of_a_different_shape_or_dtype_are_not_replayed() -> None:
    ready = Ready()
    x, y = ready.batch
    assert not ready.replays(x[:4], y[:4])
    assert not ready.replays(x.double(), y)
    assert not ready.replays(x)


def test_a_learning_rate_assigned_as_a_number_is_written_to_its_tensor() -> None:
    ready = Ready()
    rate = ready.optimizer.param_groups[0]["lr"]
    ready.optimizer.param_groups[0]["lr"] = 0.25
    assert ready.replays()
    assert ready.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25


def test_the_fast_path_ends_after_its_turns() -> None:
    ready = Ready()
    lane = ready.lane(2)
    assert lane is not None
    assert [lane(ready.batch) is not None for _ in range(4)] == [True, True, False, False]


def test_groups_that_share_a_learning_rate_take_the_slow_path() -> None:
    ready = Ready()
    updater = ready.body.updater
    group, rate = updater.rates[0]
    updater.rates = [(group, rate), ({"lr": rate}, rate)]
    ready.dependencies = Dependencies(ready.body, update_inside=True)
    assert ready.lane(10) is None
    assert ready.dependencies.what_changed() is None
    # The updater takes the new rate into account before each replay.
    group["lr"] = 0.01
    updater.refresh()
    assert (
        ready.dependencies.what_changed()
        == "one of several groups that shared a learning rate now has a different one"
    )


def test_batches_that_are_negated_lazily_take_the_slow_path() -> None:
    ready = Ready()
    y = ready.batch[1]
    negative = torch.zeros(5, 3, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    assert not ready.replays(negative, y)


def test_a_step_within_an_autocast_of_another_dtype_takes_the_slow_path() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ready = Ready()
        assert ready.replays()
    with torch.autocast("cpu", dtype=torch.float16):
        assert not ready.replays()


def test_a_step_within_an_autocast_takes_the_slow_path() -> None:
    ready = Ready()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not ready.replays()
    assert ready.replays()


class FlagElsewhere(nn.Identity):
    """Does not keep its training flag in its own dictionary, like a scripted module."""

    training = True

    def __init__(self) -> None:
        super().__init__()
        del vars(self)["training"]


def test_a_model_with_scripted_parts_takes_the_slow_path() -> None:
    assert Ready(nn.Identity()).lane(10) is not None
    assert Ready(FlagElsewhere()).lane(10) is None


def test_tags_that_a_call_in_between_has_stored_are_noticed_before_the_replay() -> None:
    ready = Ready(tagged=True)
    assert ready.replays()
    recorded = ready.tags.values
    ready.tags.values = (torch.ones(2),)
    assert not ready.replays()
    ready.stored.show()  # as the slow path does after its replay
    assert ready.replays()
    assert ready.tags.values is recorded


@pytest.mark.parametrize("carried", [(None,), (torch.ones(2),)], ids=["reset", "loaded"])
def test_carried_values_that_someone_has_set_are_noticed_before_the_replay(carried) -> None:
    ready, hidden = Ready(), CarriedValues((), 1)
    hidden.carried = (torch.zeros(2),)
    ready.state = StaticState(Carried([hidden]), ready.body.undo, torch.device("cpu"))
    assert not ready.replays()
    ready.state.show()  # as the slow path does after its replay
    assert ready.replays()
    fed_back, hidden.carried = hidden.carried, carried
    assert not ready.replays()
    hidden.carried = fed_back  # as after an evaluation
    assert ready.replays()
