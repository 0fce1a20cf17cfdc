"""The progress clock."""

import dataclasses
import json

import pytest

from flodl import Progress


def test_it_counts_updates_samples_tokens_and_epochs():
    clock = Progress().advance(samples=32, tokens=640).advance(samples=17).next_epoch()
    assert clock == Progress(step=2, samples=49, tokens=640, epoch=1)


def test_it_never_changes_in_place():
    clock = Progress()
    clock.advance(samples=1)
    assert clock == Progress()
    with pytest.raises(dataclasses.FrozenInstanceError):
        clock.step = 5


def test_it_survives_json():
    clock = Progress(3, 96, 0, 1)
    assert Progress.from_dict(json.loads(json.dumps(clock.to_dict()))) == clock


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Progress(step=-1), r"Progress.step is -1; it counts from 0"),
        (lambda: Progress(epoch=-2), r"Progress.epoch is -2"),
        (lambda: Progress().advance(samples=-1), "samples=-1, tokens=0: progress never goes back"),
    ],
)
def test_it_never_goes_back(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
