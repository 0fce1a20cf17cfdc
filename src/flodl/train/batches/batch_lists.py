"""Lists of whole batches, which look like lists of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from flodl.data import Loader
from flodl.engine import shapes_in

# The batch size of the training, or a default: the result of an evaluation does not depend on it.
Usual = Literal["usual"]
USUAL: Usual = "usual"
_NOTE = (
    "The items of this list look like batches, and they were read as samples. Pass batch_size=None to fit or "
    "evaluate, or Loader(batches, batch_size=None)."
)


@contextmanager
def hint_at_batches(data: Any, *, applies: Callable[[], bool] | None = None) -> Iterator[None]:
    """Add a note to an error if the data is a list of batches that was read as a list of samples.

    `applies` says, when an error occurs, whether this may be its cause.
    """
    try:
        yield
    except Exception as error:
        may_be = applies is None or applies()
        if may_be and looks_like_batches(data) and _NOTE not in getattr(error, "__notes__", ()):
            error.add_note(_NOTE)
        raise


def looks_like_batches(data: Any) -> bool:
    """Return whether the data, or the source of a loader of samples, is a list of batches, it seems.

    The items of such a list have several tensors with the same number of rows.

    >>> import torch
    >>> looks_like_batches([(torch.zeros(4, 3), torch.zeros(4))]), looks_like_batches([(torch.zeros(3), 1)])
    (True, False)
    """
    if isinstance(data, Loader):
        given = data.arguments()
        is_changed = given["collate"] is not None or given["transform"] is not None
        data = None if data.batch_size is None or is_changed else given["source"]
    if not isinstance(data, list) or not data or not isinstance(data[0], tuple | list | dict):
        return False
    parts = data[0].values() if isinstance(data[0], dict) else data[0]
    shapes = shapes_in(tuple(parts))
    lengths = {shape[0] for shape in shapes}
    return len(shapes) == len(parts) > 1 and len(lengths) == 1 and lengths != {1}
