"""A step function that combines [n, 1] and [n], one number for each of n samples, and gets [n, n].

The same goes for [n, 1, h, w] and [n, h, w], for example. A column is the tensor with the extra dimension.

The losses of torch warn of this and of other shapes that differ. While they are watched, the report takes the
place of this warning: it is made once, with the line of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from flodl.core import log

from ...batch.samples import num_samples
from ...batch.tree import leaves_of
from .loss_inputs import class_out_of_bounds, class_targets, loss_mistake
from .torch_warnings import Warned, warnings_at_caller

# Sums over features that keep the dimension, as the squared norms of all pairs of distances do.
_KEPT_ON_PURPOSE = ("sum", "mean", "norm", "vector_norm", "logsumexp")
# Losses and distances that broadcast without a warning of torch, by the number of tensors that are combined.
# A mode sees each as one call. The variance of gaussian_nll_loss may be [n].
_NUM_COMBINED = {
    "cosine_similarity": 2,
    "dist": 2,
    "gaussian_nll_loss": 2,
    "hinge_embedding_loss": 2,
    "kl_div": 2,
    "linalg_vecdot": 2,
    "multilabel_soft_margin_loss": 3,
    "pairwise_distance": 2,
    "poisson_nll_loss": 2,
}
_EACH = (
    "each sample is combined with every other one. Remove the extra dimension, for example with squeeze(1)"
)
# The dimensions of a tensor, or some of them.
Shape = tuple[int, ...]
_PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


OnTargets = Callable[[Tensor, int], object]


@contextmanager
def watch_broadcasts(
    model: nn.Module, batch: tuple[Any, ...], *, on_targets: OnTargets | None = None
) -> Iterator[list[str]]:
    """Yield a list that collects where the code around a model combines [n, 1, …] and [n, …], for n samples.

    The same goes for losses of torch that warn of different shapes, whatever these are. Otherwise, both
    tensors have to come from the batch or from the model, and nothing in sight may have made the column on
    purpose, such as `x[:, None]`. What the model itself does is not watched, and nothing is in a process that
    has compiled something. A loss of torch whose input or target cannot be
    meant is reported, too. `on_targets` receives the class indices that losses get, and the ignored one.

    >>> torch.compiler.reset()  # other examples compile
    >>> model, x, y = nn.Linear(3, 1), torch.ones(4, 3), torch.ones(4)
    >>> with watch_broadcasts(model, (x, y)) as found:
    ...     _ = (model(x) - y).square().mean(), (model(x).squeeze(1) - y).square().mean()
    >>> len(found), found[0].partition(", ")[2][:60]
    (1, 'tensors of shape [4, 1] and [4] broadcast to [4, 4], so each')
    """
    rows = num_samples(batch)
    if rows < 2 or isinstance(model, torch.jit.ScriptModule) or _is_compiled(model):
        yield []
        return
    mode = _Watch(rows, on_targets)
    mode.track(batch)

    def leave(*_: object) -> None:
        mode.leave()

    def enter(_: nn.Module, __: object, output: object) -> None:
        mode.track(output)
        mode.enter()

    hooks = model.register_forward_pre_hook(leave), model.register_forward_hook(enter)
    try:
        yield mode.found
    except BaseException:
        # The report may be lost.
        for warned in mode.warned:
            warned.show()
        raise
    else:
        for warned in mode.warned:
            warned.silence()
    finally:
        mode.leave()
        for hook in hooks:
            hook.remove()


class _Watch(TorchFunctionMode):
    """Look at each torch function that is called between two calls of the model."""

    def __init__(self, rows: int, on_targets: OnTargets | None = None) -> None:
        super().__init__()
        self.rows, self.found, self._on_targets = rows, list[str](), on_targets
        # The warnings of torch that a report has replaced.
        self.warned = list[Warned]()
        # What has a row for each sample, and whether it is a column that was made on purpose.
        self._samples: Any = WeakIdKeyDictionary()
        self._depth = _num_modes()
        self._is_entered = self._is_off = False

    def enter(self) -> None:
        """Start to look, unless the caller is inside another mode, which would be left in the wrong order."""
        if not (self._is_entered or self._is_off) and _num_modes() == self._depth:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._is_entered = True

    def leave(self) -> None:
        """Stop to look."""
        if self._is_entered and _num_modes() == self._depth + 1:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._is_entered = False

    def track(self, values: object) -> None:
        """Remember the tensors that have a row for each sample."""
        for leaf in leaves_of(values):
            if isinstance(leaf, Tensor) and not leaf.is_nested and leaf.ndim and len(leaf) == self.rows:
                self._samples[leaf] = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [*_tensors((*args, *(kwargs or {}).values()))]

        def take(warned: Warned, caller: FrameType) -> bool:
            return warned.is_of_loss and self._report_loss(func, given[:2], warned, caller)

        if (error := self._refused(func, args, kwargs)) is not None:
            raise error
        with warnings_at_caller(sys._getframe(), func, take):
            result = func(*args, **(kwargs or {}))
        if not self._is_off:
            try:
                self._look(func, given, result)
                if self._on_targets is not None and (targets := class_targets(func, args, kwargs)):
                    self._on_targets(*targets)
                # Reads values, which is an error where the host must not wait for the device.
                if text := loss_mistake(func, args, kwargs, self.rows):
                    self._add(sys._getframe(1), text)
            except Exception as error:
                log.debug("the search for broadcasts: %s: %s", type(error).__name__, error)
                self._is_off = True
        return result

    def _refused(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> Exception | None:
        """Return the error for a call that a CUDA device would not survive."""
        try:
            return None if self._is_off else class_out_of_bounds(func, args, kwargs)
        except Exception as error:  # where the host must not wait for the device
            log.debug("the search for class indices: %s: %s", type(error).__name__, error)
            self._is_off = True
        return None

    def _look(self, func: Any, given: list[Tensor], result: Any) -> None:
        name = getattr(func, "__name__", "")
        if (rest := self._mistaken(given[: _NUM_COMBINED.get(name, 0)])) is not None:
            self._report(rest, name)
        results = [*_tensors([result])]
        if not results or not any(one in self._samples for one in given):
            return
        for one in results:
            # The losses of torch warn themselves, or are among those above.
            is_loss = name in _NUM_COMBINED or getattr(func, "__module__", "") == "torch.nn.functional"
            is_wide = one.ndim > 1 and one.shape[:2] == (self.rows, self.rows) and not is_loss
            if is_wide and (rest := self._mistaken(given)) == one.shape[2:]:
                self._report(rest)
            elif one.ndim and one.shape[0] == self.rows:
                self._samples[one] = self._is_column_on_purpose(func, given, one)

    def _mistaken(self, given: list[Tensor]) -> Shape | None:
        """Return the dimensions after those of a column, if it is combined with a flat tensor by mistake."""
        for rest in {tuple(one.shape[2:]) for one in given if self._is_column(one)}:
            columns = [one for one in given if one.shape == (self.rows, 1, *rest)]
            flat = [one for one in given if one.shape == (self.rows, *rest)]
            is_elementwise = len(columns) + len(flat) == sum(one.numel() > 1 for one in given)
            if not (flat and is_elementwise and all(one in self._samples for one in flat)):
                continue
            memory = {one.untyped_storage().data_ptr() for one in flat}
            if not any(
                self._samples.get(one, True) or one.untyped_storage().data_ptr() in memory for one in columns
            ):
                return rest
        return None

    def _is_column(self, tensor: Tensor) -> bool:
        return tensor.ndim > 1 and tensor.shape[:2] == (self.rows, 1)

    def _is_column_on_purpose(self, func: Any, given: list[Tensor], result: Tensor) -> bool:
        """Return whether a column was made from a flat tensor, by a sum, or from columns made on purpose."""
        if not self._is_column(result):
            return False
        if any(one.shape == (self.rows, *result.shape[2:]) for one in given):
            return True
        if getattr(func, "__name__", "") in _KEPT_ON_PURPOSE and given[0].shape != result.shape:
            # Summing over other dimensions, which removes them, keeps a column as it was.
            was_column = given[0].ndim > result.ndim and self._is_column(given[0])
            return not was_column or bool(self._samples.get(given[0], True))
        larger = [one for one in given if one.numel() > 1]
        return all(one.shape == result.shape and self._samples.get(one, False) for one in larger)

    def _report(self, rest: Shape, name: str = "") -> None:
        n = self.rows
        column, flat, wide = ([*first, *rest] for first in ((n, 1), (n,), (n, n)))
        text = f"tensors of shape {column} and {flat}"
        text = f"{name} gets {text}, which" if name else text
        pairs = "" if rest else ". If all pairs are meant, write a[:, None] and b[None, :]"
        self._add(sys._getframe(1), f"{text} broadcast to {wide}, so {_EACH}{pairs}")

    def _report_loss(self, func: Any, given: list[Tensor], warned: Warned, caller: FrameType) -> bool:
        """Report a loss that torch warns of; return whether the report takes the place of this warning."""
        shapes = [tuple(one.shape) for one in given]
        if len(shapes) < 2:
            return False
        try:
            combined = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
        except RuntimeError:  # which the loss itself raises next
            return False
        told, wanted, found = (str([*shape]) for shape in (*shapes, combined))
        name = getattr(func, "__name__", "a loss")
        is_column = sorted(map(len, shapes)) == [1, 2] and combined == (self.rows, self.rows)
        self._add(
            caller,
            f"{name} gets an input of shape {told} and a target of shape {wanted}, which broadcast to "
            f"{found}{f', so {_EACH}' if is_column else '. Give both the same shape'}",
        )
        self.warned.append(warned)
        return True

    def _add(self, frame: FrameType, text: str) -> None:
        text = f"at {_line_of_user(frame)}, {text}"
        if text not in self.found:
            self.found.append(text)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among some values, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (one for one in value if isinstance(one, Tensor))


def _num_modes() -> int:
    return int(torch._C._len_torch_function_stack())


def _is_compiled(model: nn.Module) -> bool:
    """Return whether the program compiles something: compiled code would be compiled again under a mode."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(eval_frame, "cached_backends", {})
    if any(backend is not None for backend in backends.values()):
        return True
    return any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in model.modules())


def _line_of_user(frame: FrameType | None) -> str:
    """Return the file and line of the innermost frame outside torch and flodl."""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
