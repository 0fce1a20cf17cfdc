"""Batches of images on CUDA in one kernel, where flodl's own augmentations are all there is to do."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flodl.core import log

from ..batch import Form, parts_of
from ..sampling.random_numbers import Chance
from ..sources.columns import Columns, rows_of
from .augmentation import Augmentation, Compose
from .images import Normalize, RandomCrop, RandomFlip

_BLOCK = 1024
_MOST_PIXELS = _BLOCK * 65535  # of a device's grid
# Batches made step by step before the kernel is compiled: it is not worth it for a few.
_FIRST = 16


@dataclass(frozen=True)
class Chain:
    """A crop, a flip and a normalisation, in this order; each may be missing.

    >>> Chain.of(Compose(RandomFlip(), Normalize([0.5], [0.5])))
    Chain(crop=None, flip=RandomFlip(0.5), normalize=Normalize([0.5], [0.5]))
    >>> Chain.of(Compose(RandomFlip(), RandomCrop(4)))
    """

    crop: RandomCrop | None = None
    flip: RandomFlip | None = None
    normalize: Normalize | None = None

    @classmethod
    def of(cls, augment: Augmentation | None) -> Chain | None:
        """Give the chain that an augmentation is, if it is one, and all of it works on the same part."""
        parts = _flat(augment)
        if not parts or len({getattr(part, "of", None) for part in parts}) > 1:
            return None
        found: list[Any] = []
        for kind in (RandomCrop, RandomFlip, Normalize):
            found.append(parts.pop(0) if parts and type(parts[0]) is kind else None)
        return None if parts else cls(*found)

    @property
    def name(self) -> int | str | None:
        """Which part of the batch the images are, as the augmentations call it."""
        return next(part.of for part in (self.crop, self.flip, self.normalize) if part is not None)

    @property
    def border(self) -> tuple[int, float]:
        """How wide the border of a crop is, and what it is filled with."""
        return (0, 0) if self.crop is None else (self.crop.padding, self.crop.fill)

    def fits(self, images: Any) -> bool:
        """Say whether the kernel gives what the augmentations would give for these images."""
        if not isinstance(images, Tensor) or images.dim() != 4 or not images.numel():
            return False
        if images.dtype not in (torch.uint8, torch.float32) or not images.is_contiguous():
            return False
        if self.normalize is not None and len(self.normalize.mean) != images.shape[1]:
            return False
        can_be_filled = images.dtype == torch.float32 or self.border[1] in range(256)
        return can_be_filled and images[0].numel() <= _MOST_PIXELS


class Fused:
    """Makes batches of images with one kernel.

    The augmentations one by one are a dozen kernels, which cost the host more than many a step, and the
    device more than the images themselves. The bits are the same, so it does not matter when the kernel,
    which is compiled in a thread, takes over. It is compiled for images of one size and type.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._seen = 0
        self._thread: threading.Thread | None = None
        self._kernel: _Kernel | None = None

    @classmethod
    def for_augment(cls, augment: Augmentation | None) -> Fused | None:
        """Give it where the augmentations are such that the kernel can do them all."""
        chain = Chain.of(augment)
        return None if chain is None else cls(chain)

    @property
    def is_ready(self) -> bool:
        """Whether the kernel is compiled."""
        return self._kernel is not None

    def wait(self) -> None:
        """Wait for the kernel, if it is being compiled."""
        if self._thread is not None:
            self._thread.join()

    def taken(self, source: Any, samples: Tensor, chance: Chance) -> Any | None:
        """Give samples of a source as a batch, augmented; nothing where that has to be done step by step."""
        if type(source) is not Columns:
            return None
        place = _place_of(self._chain.name, source.form)
        images = None if place is None else self._images(source.columns[place], samples, chance)
        if images is None:
            return None
        columns = enumerate(source.columns)
        return source.form.build([images if at == place else rows_of(part, samples) for at, part in columns])

    def augmented(self, batch: Any, chance: Chance) -> Any | None:
        """Give a batch augmented; nothing where that has to be done step by step."""
        if not isinstance(batch, Tensor | tuple | dict):
            return None
        form, parts = parts_of(batch)
        place = _place_of(self._chain.name, form)
        images = None if place is None else self._images(parts[place], None, chance)
        if images is None:
            return None
        made = [images if at == place else part for at, part in enumerate(parts)]
        return dict(zip(batch, made)) if isinstance(batch, dict) else form.build(made)

    def _images(self, images: Any, samples: Tensor | None, chance: Chance) -> Tensor | None:
        if samples is None and (not isinstance(images, Tensor) or len(images) != len(chance)):
            return None  # not one for each sample
        kernel = self._kernel
        if kernel is None:
            self._seen += 1
            if self._seen == _FIRST and self._chain.fits(images):
                made = _Kernel(self._chain, images, gathers=samples is not None)
                # Not a daemon: Python waits for it in the end, since a compiler is not to be broken off.
                self._thread = threading.Thread(target=self._compile, args=(made,))
                self._thread.start()
            return None
        return kernel.run(images, samples, chance) if kernel.fits(images) else None

    def _compile(self, kernel: _Kernel) -> None:
        try:
            kernel.compile()
            self._kernel = kernel
        except Exception as error:
            log.debug("batches are augmented step by step: %s: %s", type(error).__name__, error)


class _Kernel:
    """The kernel for images of one size and type."""

    def __init__(self, chain: Chain, images: Tensor, *, gathers: bool) -> None:
        self._chain, self._device, self._dtype = chain, images.device, images.dtype
        self._as_current = torch.cuda.device(images.device)
        self._shape = images.shape[1:]
        self._num_blocks = -(-self._shape.numel() // _BLOCK)
        self._nothing = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._factors = (self._nothing, self._nothing)
        if chain.normalize is not None:
            self._factors = chain.normalize.factors_for(images, torch.float32)
        self._made_dtype = self._dtype if chain.normalize is None else torch.float32
        self._border = padding, fill = chain.border
        self._constants = {
            "CHANNELS": self._shape[0],
            "HEIGHT": self._shape[1],
            "WIDTH": self._shape[2],
            "PADDING": padding,
            "FILL": float(fill) if images.is_floating_point() else int(fill),
            "GATHERS": gathers,
            "CROPS": chain.crop is not None,
            "FLIPS": chain.flip is not None,
            "NORMALIZES": chain.normalize is not None,
            "SIZE": _BLOCK,
        }
        one = torch.empty((1, *self._shape), dtype=self._dtype, device=self._device)
        coins = self._nothing if chain.flip is None else self._nothing.to(torch.bool)
        self._example = (one, self._nothing, self._nothing, coins, *self._factors, self._empty(1))
        self._launch: Any = None

    def fits(self, images: Any) -> bool:
        return (
            isinstance(images, Tensor)
            and images.shape[1:] == self._shape
            and images.dtype == self._dtype
            and images.device == self._device
            and images.is_contiguous()
            and self._chain.border == self._border  # which somebody may change on the way
        )

    def compile(self) -> None:
        """Compile; nothing here runs on the device, where another thread may be recording."""
        from .kernels import make_images

        with self._as_current:
            make_images.warmup(*self._example, grid=(1, self._num_blocks), **self._constants)
        self._launch = make_images

    def run(self, images: Tensor, samples: Tensor | None, chance: Chance) -> Tensor:
        places = coins = self._nothing
        # In the order in which the augmentations draw.
        if self._chain.crop is not None:
            places = chance.integers(2 * self._chain.crop.padding + 1, 2)
        if self._chain.flip is not None:
            coins = chance.coin(self._chain.flip.p)
        made = self._empty(len(chance))
        given = (images, self._nothing if samples is None else samples, places, coins, *self._factors, made)
        with nullcontext() if torch.cuda.current_device() == self._device.index else self._as_current:
            self._launch[(len(chance), self._num_blocks)](*given, **self._constants)
        return made

    def _empty(self, count: int) -> Tensor:
        return torch.empty((count, *self._shape), dtype=self._made_dtype, device=self._device)


def _flat(augment: Augmentation | None) -> list[Augmentation]:
    if isinstance(augment, Compose):
        return [part for inner in augment.parts for part in _flat(inner)]
    return [] if augment is None else [augment]


def _place_of(name: int | str | None, form: Form) -> int | None:
    """Give the number of the part with the images, or nothing where the augmentation has to complain."""
    if form.kind == "single":
        return 0
    if form.kind == "dict":
        name = form.names[0] if name is None else name
        return form.names.index(name) if isinstance(name, str) and name in form.names else None
    place = 0 if name is None else name
    return place if isinstance(place, int) and 0 <= place < form.num_parts else None
