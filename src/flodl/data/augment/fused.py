"""Gather and augment batches of images on CUDA in one kernel, for flodl's own augmentations."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flodl.core import log

from ..batch import BatchStructure, split_parts
from ..sampling.random_numbers import Chance
from ..sources.columns import Columns, gather_rows
from .augmentation import Augmentation, flatten
from .images import Normalize, RandomCrop, RandomFlip

_BLOCK = 1024
_MAX_PIXELS = _BLOCK * 65535  # the limit of the grid
# Number of batches before the kernel is compiled: it is not worth it for a few.
COMPILE_AFTER = 16


@dataclass(frozen=True)
class Chain:
    """A crop, a flip and a normalization, in this order; each is optional.

    >>> from flodl.data import Compose
    >>> Chain.of(Compose(RandomFlip(), Normalize([0.5], [0.5])))
    Chain(crop=None, flip=RandomFlip(0.5), normalize=Normalize([0.5], [0.5]))
    >>> Chain.of(Compose(RandomFlip(), RandomCrop(4)))
    """

    crop: RandomCrop | None = None
    flip: RandomFlip | None = None
    normalize: Normalize | None = None

    @classmethod
    def of(cls, augment: Augmentation | None) -> Chain | None:
        """Return the chain that an augmentation consists of, or None; all must change the same part."""
        parts = flatten(augment)
        selected = {getattr(part, "of", None) for part in parts}
        if len(selected) != 1 or isinstance(next(iter(selected)), tuple):
            return None
        found: list[Any] = []
        for kind in (RandomCrop, RandomFlip, Normalize):
            found.append(parts.pop(0) if parts and type(parts[0]) is kind else None)
        return None if parts else cls(*found)

    @property
    def name(self) -> int | str | None:
        """The part of the batch that contains the images (`of`)."""
        parts = (self.crop, self.flip, self.normalize)
        of: int | str | None = next(part.of for part in parts if part is not None)
        return of

    @property
    def border(self) -> tuple[int, float]:
        """The width of the crop's border, and its fill value."""
        return (0, 0) if self.crop is None else (self.crop.padding, self.crop.fill)

    def supports(self, images: Any) -> bool:
        """Return whether the kernel computes the same result as the augmentations for these images."""
        if not isinstance(images, Tensor) or images.dim() != 4 or not images.numel():
            return False
        if images.dtype not in (torch.uint8, torch.float32) or not images.is_contiguous():
            return False
        if self.normalize is not None and len(self.normalize.mean) != images.shape[1]:
            return False
        can_be_filled = images.dtype == torch.float32 or self.border[1] in range(256)
        return can_be_filled and images[0].numel() <= _MAX_PIXELS


class FusedAugmentation:
    """Gathers and augments batches of images with one kernel.

    The separate augmentations launch a dozen kernels, which cost the host more than many training steps, and
    the device more than the images themselves. The result is bit-identical, so the kernel, which is compiled
    in a thread for one image size and type, can take over at any batch.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._num_batches = 0
        self._thread: threading.Thread | None = None
        self._kernel: Kernel | None = None

    @classmethod
    def for_augment(cls, augment: Augmentation | None) -> FusedAugmentation | None:
        """Return an instance if the kernel can do all augmentations, else None."""
        chain = Chain.of(augment)
        return None if chain is None else cls(chain)

    @property
    def is_started(self) -> bool:
        """Whether the kernel is being compiled, or was."""
        return self._thread is not None

    @property
    def is_ready(self) -> bool:
        """Whether the kernel is compiled."""
        return self._kernel is not None

    def wait(self) -> None:
        """Wait for the kernel, if it is being compiled."""
        if self._thread is not None:
            self._thread.join()

    def gather(self, source: Any, samples: Tensor, chance: Chance) -> Any | None:
        """Return samples of a source as an augmented batch, or None if the kernel cannot be used."""
        if type(source) is not Columns:
            return None
        index = image_index(self._chain.name, source.structure)
        images = None if index is None else self._run(source.columns[index], samples, chance)
        if images is None:
            return None
        return source.structure.build(
            [
                images if at == index else gather_rows(column, samples)
                for at, column in enumerate(source.columns)
            ]
        )

    def augment(self, batch: Any, chance: Chance) -> Any | None:
        """Return the augmented batch, or None if the kernel cannot be used."""
        if not isinstance(batch, Tensor | tuple | dict):
            return None
        structure, parts = split_parts(batch)
        index = image_index(self._chain.name, structure)
        images = None if index is None else self._run(parts[index], None, chance)
        if images is None:
            return None
        results = [images if at == index else part for at, part in enumerate(parts)]
        return dict(zip(batch, results)) if isinstance(batch, dict) else structure.build(results)

    def _run(self, images: Any, samples: Tensor | None, chance: Chance) -> Tensor | None:
        if samples is None and (not isinstance(images, Tensor) or len(images) != len(chance)):
            return None  # not one image per sample
        kernel = self._kernel
        if kernel is None:
            self._num_batches += 1
            if self._num_batches == COMPILE_AFTER and self._chain.supports(images):
                new = Kernel(self._chain, images, gathers=samples is not None)
                # Not a daemon: the interpreter waits for it, because a compiler must not be interrupted.
                self._thread = threading.Thread(target=self._compile, args=(new,))
                self._thread.start()
            return None
        return kernel.run(images, samples, chance) if kernel.supports(images) else None

    def _compile(self, kernel: Kernel) -> None:
        try:
            kernel.compile()
            self._kernel = kernel
        except Exception as error:
            log.debug("the augmentations are not fused: %s: %s", type(error).__name__, error)


class Kernel:
    """The kernel for images of one size and type."""

    def __init__(self, chain: Chain, images: Tensor, *, gathers: bool) -> None:
        self._chain, self._device, self._dtype = chain, images.device, images.dtype
        self._as_current = torch.cuda.device(images.device)
        self._shape = images.shape[1:]
        self._num_blocks = -(-self._shape.numel() // _BLOCK)
        self._unused = torch.zeros(
            1, dtype=torch.int64, device=self._device
        )  # for arguments it does not read
        self._factors = (self._unused, self._unused)
        if chain.normalize is not None:
            self._factors = chain.normalize.factors_for(images, torch.float32)
        self._output_dtype = self._dtype if chain.normalize is None else torch.float32
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
        example = torch.empty((1, *self._shape), dtype=self._dtype, device=self._device)
        coins = self._unused if chain.flip is None else self._unused.to(torch.bool)
        self._example = (example, self._unused, self._unused, coins, *self._factors, self._empty(1))
        self.launch: Any = None

    def supports(self, images: Any) -> bool:
        """Return whether it was compiled for such images."""
        return (
            isinstance(images, Tensor)
            and images.shape[1:] == self._shape
            and images.dtype == self._dtype
            and images.device == self._device
            and images.is_contiguous()
            and self._chain.border == self._border  # the user may change it
        )

    def compile(self) -> None:
        """Compile without running anything on the device, where another thread may be capturing."""
        from .kernels import gather_and_augment

        with self._as_current:
            gather_and_augment.warmup(*self._example, grid=(1, self._num_blocks), **self._constants)
        self.launch = gather_and_augment

    def run(self, images: Tensor, samples: Tensor | None, chance: Chance) -> Tensor:
        """Return the augmented images; of all images, or of the given samples."""
        offsets = coins = self._unused
        # In the order in which the augmentations draw.
        if self._chain.crop is not None:
            offsets = chance.integers(2 * self._chain.crop.padding + 1, 2)
        if self._chain.flip is not None:
            coins = chance.coin(self._chain.flip.p)
        output = self._empty(len(chance))
        indices = self._unused if samples is None else samples
        arguments = (images, indices, offsets, coins, *self._factors, output)
        with nullcontext() if torch.cuda.current_device() == self._device.index else self._as_current:
            self.launch[(len(chance), self._num_blocks)](*arguments, **self._constants)
        return output

    def _empty(self, count: int) -> Tensor:
        return torch.empty((count, *self._shape), dtype=self._output_dtype, device=self._device)


def image_index(name: int | str | None, structure: BatchStructure) -> int | None:
    """Return the index of the part with the images, or None if the augmentation must raise an error."""
    if structure.kind == "single":
        return 0
    if structure.kind == "dict":
        name = structure.names[0] if name is None else name
        return structure.names.index(name) if isinstance(name, str) and name in structure.names else None
    index = 0 if name is None else name
    return index if isinstance(index, int) and 0 <= index < structure.num_parts else None
