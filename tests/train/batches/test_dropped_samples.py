"""Each sample counts once, also where a collate function or `augment` drops samples."""

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from flodl import Loader


def present(samples):
    return default_collate([sample for sample in samples if sample is not None])


@pytest.fixture
def damaged():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    return (x[12:], y[12:]), [(x[i], y[i]) if i >= 12 else None for i in range(64)]


def test_an_evaluation_weighs_the_samples_that_were_kept(make, damaged):
    kept, samples = damaged
    trainer = make()
    expected = trainer.evaluate(kept)["loss"]
    ours = Loader(samples, batch_size=16, shuffle=False, collate=present)
    assert trainer.evaluate(ours)["loss"] == pytest.approx(expected, rel=1e-6)
    of_torch = DataLoader(samples, batch_size=16, collate_fn=present)
    assert trainer.evaluate(of_torch)["loss"] == pytest.approx(expected, rel=1e-6)


def test_an_accumulated_update_weighs_the_samples_that_were_kept(make, damaged):
    kept, samples = damaged
    one, several = make(), make(accumulate=4)
    one.fit(Loader(kept, batch_size=52, shuffle=False), epochs=1)
    several.fit(Loader(samples, batch_size=16, shuffle=False, collate=present), epochs=1)
    for ours, theirs in zip(several.model.parameters(), one.model.parameters()):
        torch.testing.assert_close(ours, theirs)
