"""A dry pass leaves no trace, whatever the run: every number is the same with and without it."""

import random

import torch
from torch import nn

from flodl import Loader, Trainer
from flodl.optim import CosineScheduler

from ..same_state import same


class Noisy(nn.Module):
    """Changes buffers, attributes and generators in each forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.calls, self.generator = 0, torch.Generator().manual_seed(0)

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x + self.mean + 0.1 * torch.randn(x.shape, generator=self.generator)


def model_of(rng):
    layers = [nn.BatchNorm1d(4), nn.Dropout(0.3), Noisy(), nn.LayerNorm(4), nn.Tanh()]
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *rng.sample(layers, rng.randrange(4)), nn.Linear(4, 1))


def run(case, *, dry_pass):
    """Train a random model with random settings, and return everything that is left of it."""
    rng = random.Random(case)
    model, counts = model_of(rng), []
    in_place, draws = rng.random() < 0.5, rng.random() < 0.5

    def step_fn(model, x, y):
        counts.append(len(x))
        if in_place:
            x.add_(0.01 * len(counts))
        noise = torch.rand(1).item() + random.random() if draws else 0.0
        loss = nn.functional.mse_loss(model(x), y) * (1 + noise)
        return loss, {"calls": float(len(counts))}

    x = torch.randn(rng.choice([8, 11, 12]), 3, generator=torch.Generator().manual_seed(1))
    data = x, x.sum(1, keepdim=True)
    settings = {
        "accumulate": rng.choice([1, 1, 2, 3]),
        "ema": rng.choice([None, 0.9]),
        "clip_norm": rng.choice([None, 1.0]),
        "schedule": rng.choice([None, CosineScheduler(0.1, 0.0, 10)]),
        "tail": rng.choice(["eager", "drop"]),
        "precision": rng.choice(["fp32", "bf16"]),
    }
    kind = rng.choice([torch.optim.SGD, torch.optim.AdamW])
    trainer = Trainer(
        model,
        step_fn,
        optimizer=lambda groups: kind(groups, lr=0.01),
        device="cpu",
        tier="eager",
        monitor=False,
        dry_pass=dry_pass,
        **settings,
    )
    size, limit = rng.choice([3, 4]), rng.choice([None, 2])
    train = rng.choice([data, Loader(tuple(part.clone() for part in data), size, seed=3)])
    batch_size = None if isinstance(train, Loader) else size
    torch.manual_seed(2)
    random.seed(2)
    result = trainer.fit(train, epochs=1, batch_size=batch_size, eval_data=data, limit=limit)
    left = [*model.state_dict().values(), *(m.generator.get_state() for m in model if isinstance(m, Noisy))]
    numbers = [m.calls for m in model if isinstance(m, Noisy)]
    return (
        result.history,
        counts,
        left,
        numbers,
        torch.rand(2),
        random.random(),
        trainer.optimizer.state_dict(),
    )


def test_a_run_with_a_dry_pass_is_the_same_bit_for_bit(fuzz):
    def check(rng):
        case = rng.random()
        with torch.random.fork_rng(devices=[]):
            found = [run(case, dry_pass=dry_pass) for dry_pass in (False, True)]
        for one, other in zip(*found):
            assert same(one, other)

    fuzz(check)
