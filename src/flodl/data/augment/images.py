"""Augmentations of batches of images, on the device of the batch: crop, flip and normalize."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from flodl.core.errors import DataError
from flodl.core.integers import is_index, is_integer
from flodl.core.usage.calls import DataCallError, explain_creation

from ..sampling.random_numbers import Chance
from .scale import check_scale

# An image whose last dimension is one of these, and the others at least this size, has its channels last.
_NUM_CHANNELS = (1, 3, 4)
SMALLEST_IMAGE = 8
_CROP = (
    "The size of the images stays the same: write RandomCrop(4), which pads by 4 pixels, for torchvision's "
    "RandomCrop(32, padding=4)."
)

Part = int | str


class _ImageAugmentation(ABC):
    """An augmentation of one part of the batch: the one that `of` names, by default the first.

    If `of` names several parts, all are changed with the same random numbers.
    """

    draws_from_chance = True

    def __init__(self, of: Part | Sequence[Part] | None) -> None:
        names = tuple(of) if isinstance(of, list | tuple) else (of,)
        are_valid = all(isinstance(name, str) or is_integer(name, at_least=0) for name in names)
        if of is not None and not (are_valid and 0 < len({*names}) == len(names)):
            raise DataError(
                f"{type(self).__name__}: of={of!r}. Pass the index or the name of the images in the batch, "
                "or a tuple of different ones."
            )
        self.of: Any = names if isinstance(of, list | tuple) else of

    def __call__(self, batch: Any, chance: Chance) -> Any:
        if isinstance(batch, Tensor):
            return self.apply(batch, chance)
        if not isinstance(self.of, tuple):
            return self._change(batch, self.of, chance)
        *others, last = self.of
        for one in others:
            batch = self._change(batch, one, copy(chance))  # which draws the same numbers
        return self._change(batch, last, chance)

    def _change(self, batch: Any, of: Part | None, chance: Chance) -> Any:
        """Return the batch with one part changed."""
        if isinstance(batch, dict):
            name = next(iter(batch)) if of is None else of
            if name not in batch:
                raise DataError(f"{type(self).__name__}: the batch has {sorted(batch)}, not {name!r}.")
            return {**batch, name: self._apply_to_part(batch[name], chance)}
        index = 0 if of is None else of
        if not isinstance(index, int) or not 0 <= index < len(batch):
            raise DataError(
                f"{type(self).__name__}: of={index!r}, but the batch is a tuple of {len(batch)}. "
                "Pass the index of the images in it."
            )
        return tuple(
            self._apply_to_part(part, chance) if at == index else part for at, part in enumerate(batch)
        )

    def _apply_to_part(self, part: Any, chance: Chance) -> Any:
        if isinstance(self.of, tuple) and isinstance(part, Tensor) and part.dim() == 3:
            return self.apply(part.unsqueeze(1), chance).squeeze(1)  # masks [n, h, w]
        return self.apply(part, chance)

    @abstractmethod
    def apply(self, images: Tensor, chance: Chance) -> Tensor:
        """Augment the images."""

    @property
    def is_random(self) -> bool:
        """Whether it changes images at random."""
        return False

    @abstractmethod
    def arguments(self) -> list[str]:
        """Return the arguments as in a call, without `of`."""

    def __repr__(self) -> str:
        """Return the call: it is part of the record of a run, so that a changed argument is noticed."""
        of = [] if self.of is None else [f"of={self.of!r}"]
        return f"{type(self).__name__}({', '.join(self.arguments() + of)})"


@explain_creation(DataCallError, elsewhere=dict.fromkeys(("size", "pad_if_needed"), _CROP), example=_CROP)
class RandomCrop(_ImageAugmentation):
    """Pad images `[n, c, h, w]` on all sides, then crop a random window of the original size.

    The argument is the padding, in pixels: `RandomCrop(4)` for images of 32×32 is torchvision's
    `RandomCrop(32, padding=4)`. The padding must be less than half of the height and of the width. With
    `of=(0, 1)`, images and their masks `[n, h, w]` or `[n, c, h, w]` are cropped in the same way.

    >>> from flodl.data.sampling.order import sample_keys
    >>> image = torch.arange(1, 10).view(1, 1, 3, 3)
    >>> RandomCrop(1)(image, Chance(sample_keys(1, torch.arange(1)))).squeeze()
    tensor([[4, 5, 6],
            [7, 8, 9],
            [0, 0, 0]])
    """

    def __init__(self, padding: int, *, fill: float = 0, of: Part | Sequence[Part] | None = None) -> None:
        super().__init__(of)
        if not is_index(padding, at_least=0):
            raise DataError(f"RandomCrop: padding={padding!r}. Pass a number of pixels, an integer >= 0.")
        if not _is_finite(fill):
            raise DataError(f"RandomCrop: fill={fill!r}. Pass the value of the padding, a number.")
        self.padding, self.fill = int(padding), fill
        self._row_starts: dict[tuple[object, ...], Tensor] = {}

    def __call__(self, batch: Any, chance: Chance) -> Any:
        cropped = super().__call__(batch, chance)
        if isinstance(self.of, tuple) and not isinstance(batch, Tensor):
            sizes = {one: tuple(cropped[one].shape[-2:]) for one in self.of}
            if len({*sizes.values()}) > 1:
                raise DataError(
                    f"RandomCrop: of={self.of!r}, and the parts have different heights and widths: {sizes}. "
                    "Only parts of the same size can be cropped in the same way."
                )
        return cropped

    def apply(self, images: Tensor, chance: Chance) -> Tensor:
        _check_images(self, images)
        height, width = images.shape[2:]
        if self.padding and 2 * self.padding >= min(height, width):
            raise DataError(
                f"RandomCrop({self.padding}) pads by {self.padding} pixels, and the images are "
                f"{height}×{width}: much of them would be lost. The argument is the padding, less than half "
                "of the height and width, and the size of the images stays the same: RandomCrop(4) pads by 4 "
                f"pixels, like torchvision's RandomCrop({_size(height, width)}, padding=4)."
            )
        padded = functional.pad(images, [self.padding] * 4, value=self.fill).contiguous()
        padded_width = padded.shape[3]
        down, right = chance.integers(2 * self.padding + 1, 2).unbind(1)
        # Each row of the result is contiguous in memory: selecting rows of an overlapping view copies whole
        # rows, which is three times as fast as indexing a view of windows.
        rows = padded.view(-1).as_strided((padded.numel() - width + 1, width), (1, 1))
        starts = self._row_starts_for(images) + (down * padded_width + right).view(-1, 1)
        return rows.index_select(0, starts.view(-1)).view(images.shape)

    def _row_starts_for(self, images: Tensor) -> Tensor:
        """Return the offset of each row of a window at the top left, `[n, c * h]`.

        Cached by the batch size rounded up to a power of two, and never freed: a CUDA graph may read it.
        """
        count, channels, height, width = images.shape
        size = 1 << max(count - 1, 0).bit_length()
        key = (images.device, size, channels, height, width, self.padding)
        starts = self._row_starts.get(key)
        if starts is None:
            padded_height, padded_width = height + 2 * self.padding, width + 2 * self.padding
            planes = torch.arange(size * channels, device=images.device).view(size, channels, 1)
            lines = torch.arange(height, device=images.device)
            starts = (planes * (padded_height * padded_width) + lines * padded_width).view(size, -1)
            if _is_traced(images):
                return starts[:count]  # part of the captured program
            if images.is_cuda:
                # Once, so that any stream may read it from now on.
                torch.cuda.current_stream(images.device).synchronize()
            self._row_starts[key] = starts
        return starts[:count]

    @property
    def is_random(self) -> bool:
        return self.padding > 0

    def arguments(self) -> list[str]:
        return [f"{self.padding}", *([f"fill={self.fill!r}"] if self.fill else [])]


@explain_creation(DataCallError, example="Write RandomFlip() or RandomFlip(p=0.5).")
class RandomFlip(_ImageAugmentation):
    """Flip each image horizontally with probability `p`; with `of=(0, 1)`, also its mask.

    >>> from flodl.data.sampling.order import sample_keys
    >>> rows = torch.tensor([[1, 2], [1, 2], [1, 2]]).view(3, 1, 1, 2)
    >>> RandomFlip()(rows, Chance(sample_keys(4, torch.arange(3)))).view(3, 2).tolist()
    [[2, 1], [1, 2], [1, 2]]
    """

    def __init__(self, p: float = 0.5, *, of: Part | Sequence[Part] | None = None) -> None:
        super().__init__(of)
        if not _is_finite(p) or not 0.0 <= p <= 1.0:
            raise DataError(f"RandomFlip: p={p!r}. Pass a probability between 0 and 1.")
        self.p = p

    def apply(self, images: Tensor, chance: Chance) -> Tensor:
        _check_images(self, images)
        images = images.contiguous()
        flipped = images.flip(3)
        coin = chance.coin(self.p).view(-1, 1, 1, 1)
        row_bytes = images.shape[3] * images.element_size()
        if row_bytes % 8 or images.data_ptr() % 8:
            return torch.where(coin, flipped, images)
        # Eight bytes at a time: the selection itself dominates on a CPU.
        selected = torch.where(coin, flipped.view(torch.int64), images.view(torch.int64))
        return selected.view(images.dtype)

    @property
    def is_random(self) -> bool:
        return 0.0 < self.p < 1.0

    def arguments(self) -> list[str]:
        return [f"{self.p}"]


@explain_creation(
    DataCallError,
    elsewhere={"inplace": "Leave it out: the data itself is never changed."},
    example="Write Normalize([0.5], [0.25]), with a mean and a standard deviation for each channel.",
)
class Normalize(_ImageAugmentation):
    """Subtract the mean and divide by the standard deviation per channel; bytes are scaled to 0 to 1 first.

    Statistics of bytes (a mean of 125) raise an error for bytes. For other data, the first batch is compared
    with them.

    >>> images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 2, 1, 1)
    >>> normalize = Normalize([0.5, 0.5], [0.25, 0.5])
    >>> normalize(images, Chance(torch.zeros(1, dtype=torch.int64))).round().flatten()
    tensor([-2.,  1.])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, of: Part | None = None) -> None:
        super().__init__(of)
        if isinstance(self.of, tuple):
            raise DataError(
                f"Normalize: of={of!r}. Pass one index or name: every part has its own statistics."
            )
        for name, values in {"mean": mean, "std": std}.items():
            if not _has_length(values) or not all(map(_is_finite, values)):
                raise DataError(f"Normalize: {name}={values!r}. Pass a list with one number per channel.")
        if len(mean) != len(std) or any(value <= 0 for value in std):
            raise DataError(
                f"Normalize: mean={list(mean)}, std={list(std)}. Pass one of each per channel, std above 0."
            )
        self.mean, self.std = tuple(mean), tuple(std)
        self._factors: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
        self._is_checked = False

    def apply(self, images: Tensor, chance: Chance) -> Tensor:
        _check_images(self, images)
        if images.shape[1] != len(self.mean):
            raise DataError(
                f"Normalize: {len(self.mean)} means for images of shape {tuple(images.shape)}. "
                "Pass one mean and one std per channel."
            )
        values = images if images.is_floating_point() else images.to(torch.float32)
        scale, shift = self.factors_for(images, values.dtype)
        # Into the converted copy if there is one: new memory costs more than the arithmetic.
        return torch.addcmul(shift, values, scale, out=None if values is images else values)

    def factors_for(self, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the scale and shift of each pixel, cached because a copy from the host would synchronize."""
        key = (images.device, images.dtype, images.shape[1:])
        if key not in self._factors:
            if not self._is_checked and not _is_traced(images):
                self._is_checked = True
                check_scale(images, self.mean, self.std)
            mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (self.mean, self.std))
            scale = 1 / (255 * std) if images.dtype == torch.uint8 else 1 / std
            shape = images.shape[1:]
            self._factors[key] = (
                scale.expand(shape).to(images.device, dtype),
                (-mean / std).expand(shape).to(images.device, dtype),
            )
        return self._factors[key]

    def arguments(self) -> list[str]:
        return [f"{list(self.mean)}", f"{list(self.std)}"]


def _size(height: int, width: int) -> str:
    return f"{height}" if height == width else f"({height}, {width})"


def _has_length(values: object) -> bool:
    try:
        return len(values) > 0  # type: ignore[arg-type]
    except TypeError:
        return False


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number; one in a tensor or an array counts."""
    try:
        return not isinstance(value, str | bytes) and math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        return False


def _is_traced(images: Tensor) -> bool:
    """Return whether a program is captured or compiled, which may not read values on the host."""
    is_captured = images.is_cuda and torch._C._cuda_isCurrentStreamCapturing()
    return is_captured or torch.compiler.is_compiling()


def _check_images(part: _ImageAugmentation, images: Any) -> None:
    if not isinstance(images, Tensor) or images.dim() != 4:
        found = (
            f"a tensor of shape {tuple(images.shape)}"
            if isinstance(images, Tensor)
            else type(images).__name__
        )
        raise DataError(
            f"{type(part).__name__} expects images [batch, channels, height, width], got {found}. "
            "Pass of= to select the part of the batch that contains them."
        )
    _, first, second, last = images.shape
    if last in _NUM_CHANNELS and min(first, second) >= SMALLEST_IMAGE:
        raise DataError(
            f"{type(part).__name__} expects images [batch, channels, height, width], got "
            f"{tuple(images.shape)}, where the channels are last. Convert the data once: "
            "images.permute(0, 3, 1, 2).contiguous()."
        )
