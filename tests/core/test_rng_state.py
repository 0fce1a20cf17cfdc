"""Saving and restoring the global random number generators."""

import random

import numpy as np
import pytest
import torch

from flodl.core.rng_state import RngState, preserve_rng_state

CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def _restore_generators():
    with preserve_rng_state(*DEVICES):
        yield


def draw() -> tuple[float, ...]:
    """Draw from every generator; NumPy keeps the second number of each normal pair for the next call."""
    on_devices = [torch.rand((), device=device).item() for device in DEVICES]
    return random.random(), random.gauss(), np.random.rand(), np.random.normal(), *on_devices


def test_restoring_repeats_every_generator():
    np.random.normal()  # leaves half of a pair
    state = RngState.capture(*DEVICES)
    drawn = draw()
    assert draw() != drawn
    state.restore()
    assert draw() == drawn


def test_a_state_survives_its_dict():
    np.random.normal()
    state = RngState.capture(DEVICES[-1])
    drawn = draw()
    RngState.from_state_dict(state.state_dict(), DEVICES[-1]).restore()
    assert draw() == drawn


def test_the_dict_has_the_format_of_saved_bundles():
    np.random.seed(3)
    random.seed(3)
    state = RngState.capture(CPU).state_dict()
    assert list(state) == ["python", "numpy", "torch"]
    assert state["python"] == random.getstate()
    name, keys, position, has_gauss, gauss = np.random.get_state()
    saved_keys = state["numpy"].pop(1)
    assert saved_keys.dtype is torch.int64
    assert saved_keys.tolist() == keys.tolist()
    assert state["numpy"] == [name, position, has_gauss, gauss]
    assert torch.equal(state["torch"], torch.get_rng_state())


def test_a_dict_from_cuda_restores_the_other_generators_on_a_cpu():
    saved = {**RngState.capture().state_dict(), "cuda": torch.zeros(16, dtype=torch.uint8)}
    assert RngState.from_state_dict(saved, CPU).cuda == ()


@pytest.mark.parametrize("drawn_from", [random.random, np.random.rand, lambda: torch.rand(1)])
def test_states_differ_after_any_draw(drawn_from):
    before = RngState.capture()
    assert before.same_on_cpu(RngState.capture())
    drawn_from()
    after = RngState.capture()
    assert not before.same_on_cpu(after)
    assert before.same_on_cuda(after)


def test_states_of_a_cuda_device_are_compared():
    first, second = torch.zeros(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8)
    here = RngState.capture()
    states = [
        RngState(here.python, here.numpy, here.cpu, ((torch.device("cuda", 0), state),))
        for state in (first, first.clone(), second)
    ]
    assert states[0].same_on_cuda(states[1])
    assert not states[0].same_on_cuda(states[2])
    assert states[0].same_on_cpu(states[2])


def test_a_block_is_undone_even_if_it_raises():
    before = RngState.capture()

    def draw_and_fail():
        with preserve_rng_state(CPU):
            draw()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        draw_and_fail()
    assert before.same_on_cpu(RngState.capture())
