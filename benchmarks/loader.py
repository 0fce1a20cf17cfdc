"""Throughput of loading and augmenting CIFAR-size images, compared with torch's `DataLoader`.

    python benchmarks/loader.py [--samples 50000] [--batch 256] [--rounds 10] [--device cuda] [--train]

Every rival does the same work: random crop with a 4-pixel border, random flip, normalized float32 batches
on the device. Torch uses one thread in this process, as in the workers of its loader (`--threads` for
more): on a shared machine, more threads only wait for each other. `--train` also measures training steps on
CUDA, with batches that are already on the device and with the loader; the difference is the cost of
loading.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Timing, interleave, paired_ratio, table, wait, write_results
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from flodl import TrainStep
from flodl.data import Loader, Normalize, RandomCrop, RandomFlip

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PADDING = 4
AUGMENT = [RandomCrop(PADDING), RandomFlip(), Normalize(MEAN, STD)]
_MEAN, _STD = (torch.tensor(values).view(3, 1, 1) * 255 for values in (MEAN, STD))


class PerSample(Dataset[tuple[Tensor, Tensor]]):
    """The usual implementation: transforms in `__getitem__`."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = functional.pad(self.images[index], [PADDING] * 4)
        down, right = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
        image = image[:, down : down + 32, right : right + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image.float() - _MEAN) / _STD, self.labels[index]


class Batched(PerSample):
    """The expert implementation: `__getitems__` with whole-batch operations."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices)
        count = len(rows)
        padded = functional.pad(self.images[rows], [PADDING] * 4)
        windows = padded.unfold(2, 32, 1).unfold(3, 32, 1)
        down, right = torch.randint(0, 2 * PADDING + 1, (2, count))
        images = windows[torch.arange(count), :, down, right]
        flipped = torch.rand(count) < 0.5
        images[flipped] = images[flipped].flip(3)
        return images.float().sub_(_MEAN).div_(_STD), self.labels[rows]


def unchanged(batch: Any) -> Any:
    return batch


def torch_loader(dataset: Dataset[Any], batch: int, workers: int, device: str) -> DataLoader[Any]:
    """Return torch's loader with its best settings."""
    return DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device != "cpu",
        collate_fn=unchanged if isinstance(dataset, Batched) else None,
    )


def epoch(loader: Iterable[Any], device: str) -> None:
    """Read an epoch, and move every batch to the device."""
    for images, labels in loader:
        images.to(device, non_blocking=True)
        labels.to(device, non_blocking=True)


def rivals(images: Tensor, labels: Tensor, batch: int, device: str) -> dict[str, Iterable[Any]]:
    per_sample, batched = PerSample(images, labels), Batched(images, labels)
    ours = partial(Loader, (images, labels), batch, device=device, augment=AUGMENT)
    return {
        **{
            f"DataLoader, per sample, {n} workers": torch_loader(per_sample, batch, n, device) for n in (0, 2)
        },
        **{f"DataLoader, batched, {n} workers": torch_loader(batched, batch, n, device) for n in (0, 2)},
        "flodl, resident": ours(mode="resident"),
        "flodl, streaming": ours(mode="streaming"),
        "flodl, streaming, 2 workers": ours(mode="streaming", num_workers=2),
    }


def training(images: Tensor, labels: Tensor, batch: int, rounds: int) -> dict[str, Timing]:
    """Time an epoch of captured training steps with batches already on the device, and with the loader."""

    def stepper() -> Callable[..., Any]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
        ).cuda()  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return TrainStep(model, optimizer, lambda m, x, y: functional.cross_entropy(m(x), y))

    ready = list(Loader((images, labels), batch, device="cuda", augment=AUGMENT, drop_last=True))

    def run(step: Callable[..., Any], batches: Iterable[Any]) -> None:
        for x, y in batches:
            step(x, y)

    sources = {
        "batches already on the device": ready,
        "flodl, resident": Loader((images, labels), batch, device="cuda", augment=AUGMENT, drop_last=True),
        "flodl, streaming": Loader(
            (images, labels), batch, device="cuda", augment=AUGMENT, drop_last=True, mode="streaming"
        ),
    }
    return interleave(
        {name: partial(run, stepper(), source) for name, source in sources.items()}, rounds=rounds
    )


def report(timings: dict[str, Timing], samples: int) -> dict[str, Any]:
    """Return the results; ratios are computed within each round."""
    ours = timings["flodl, resident"]
    return {
        name: {
            "samples_per_s": samples / taken.median_s,
            "best_samples_per_s": samples / taken.best_s,
            "jitter": taken.jitter,
            "resident_is_faster_by": 1 / paired_ratio(ours, taken),
        }
        for name, taken in timings.items()
    }


def show(found: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{row['samples_per_s']:,.0f} ± {row['jitter']:.1%}",
            f"{row['best_samples_per_s']:,.0f}",
            f"{row['resident_is_faster_by']:.2f}×",
        ]
        for name, row in found.items()
    ]
    return table(["", "samples/s", "best", "resident is faster by"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="torch threads in this process")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = torch.randint(0, 256, (options.samples, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (options.samples,))
    loaders = rivals(images, labels, options.batch, options.device)
    runs = {name: partial(epoch, loader, options.device) for name, loader in loaders.items()}
    results: dict[str, Any] = {
        "settings": {
            "device": options.device,
            "samples": options.samples,
            "batch": options.batch,
            "rounds": options.rounds,
        },
        "loaders": report(interleave(runs, rounds=options.rounds, warmup=1), options.samples),
    }
    print(show(results["loaders"]))
    best = max(
        (name for name in loaders if "per sample" in name),
        key=lambda n: results["loaders"][n]["samples_per_s"],
    )
    expert = max(
        (name for name in loaders if "batched" in name), key=lambda n: results["loaders"][n]["samples_per_s"]
    )
    for name in (best, expert):
        print(f"resident compared with {name}: {results['loaders'][name]['resident_is_faster_by']:.2f}×")
    if options.train and options.device != "cpu":
        wait()
        results["training"] = report(training(images, labels, options.batch, options.rounds), options.samples)
        print(show(results["training"]))
    kind = torch.device(options.device).type
    print(f"wrote {write_results(f'loader_{kind}', results, folder=options.json)}")


if __name__ == "__main__":
    main()
