"""`LossSlots`: a tensor is reused only if nobody can notice."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flodl.engine.capture import loss_slots
from flodl.engine.capture.loss_slots import LossSlots


def new_places() -> LossSlots:
    return LossSlots(range(3), torch.device("cpu"))


def given(places: LossSlots) -> list[Tensor]:
    return [tensor for tensor, _ in places.entries]


def test_a_tensor_that_nobody_holds_is_reused() -> None:
    places = new_places()
    before = list(map(id, given(places)))
    assert not places.renew()
    assert list(map(id, given(places))) == before


HOLDING: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda loss: loss,
    "in a list": lambda loss: [loss],
    "detached": lambda loss: loss.detach(),
    "its data": lambda loss: loss.data,
    "a view": lambda loss: loss.view(1),
    "its memory": lambda loss: loss.untyped_storage(),
    "for a gradient": lambda loss: loss * torch.ones((), requires_grad=True),
    "for another library": lambda loss: torch.utils.dlpack.to_dlpack(loss),
    "as an array": lambda loss: loss.numpy(),
    "weakly": weakref.ref,
}


@pytest.mark.parametrize("how", HOLDING)
def test_a_tensor_that_somebody_holds_keeps_its_number(how: str) -> None:
    places = new_places()
    given(places)[1].fill_(7.0)
    address, neighbours = places.addresses[1], places.addresses[::2]
    held = HOLDING[how](given(places)[1])
    assert places.renew()
    assert address not in places.addresses
    assert places.addresses[::2] == neighbours
    assert not places.renew()
    del held


CHANGING: dict[str, Callable[[Tensor], object]] = {
    "asked for a gradient": lambda loss: loss.requires_grad_(),
    "given another shape": lambda loss: loss.unsqueeze_(0),
    "given other memory": lambda loss: setattr(loss, "data", torch.zeros(())),
    "given a size": lambda loss: loss.resize_(4),
    "marked": lambda loss: setattr(loss, "epoch", 3),
}


@pytest.mark.parametrize("how", CHANGING)
def test_a_tensor_that_was_changed_and_dropped_is_not_reused(how: str) -> None:
    places = new_places()
    CHANGING[how](given(places)[1])
    assert places.renew()
    assert [(loss.shape, loss.requires_grad, vars(loss)) for loss in given(places)] == [((), False, {})] * 3
    assert [loss.data_ptr() for loss in given(places)] == places.addresses
    assert not places.renew()


def test_losses_keep_the_numbers_of_their_own_turn() -> None:
    places = new_places()
    held: list[tuple[float, Tensor]] = []
    for turn in range(40):
        places.renew()
        for number, loss in enumerate(given(places)):
            loss.fill_(10.0 * turn + number)
            if (turn + number) % 3 == 0:
                held.append((10.0 * turn + number, loss.detach() if turn % 2 else loss))
    assert [float(loss) for _, loss in held] == [number for number, _ in held]


def test_without_reference_counts_from_torch_no_tensor_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_slots, "USES_BY_TORCH", None)
    places = new_places()
    before = given(places)
    assert places.renew()
    assert not {*map(id, before)} & {*map(id, given(places))}
