"""The rows of `benchmarks/hf.py`: each is measured in a process of its own, within a time limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rows.clock import Clock

from . import deberta, finetune, precision
from .sizes import Sizes

Row = Callable[[Sizes, Clock], dict[str, Any]]

# In the order of importance; the number of seconds is the limit of the process.
ROWS: dict[str, tuple[float, Row]] = {
    "fine-tune MR 32": (240, partial(finetune.measure, data="MR", batch=32)),
    "fine-tune MR 256": (240, partial(finetune.measure, data="MR", batch=256)),
    "deberta inference 128": (240, partial(deberta.infer, length=128)),
    "deberta training 128": (240, partial(deberta.train, length=128)),
    "precision": (120, precision.measure),
    "fine-tune Banking77 32": (240, partial(finetune.measure, data="Banking77", batch=32)),
    "fine-tune Banking77 256": (240, partial(finetune.measure, data="Banking77", batch=256)),
    "deberta inference 512": (240, partial(deberta.infer, length=512)),
    "deberta training 512": (240, partial(deberta.train, length=512)),
    "deberta inference 256": (240, partial(deberta.infer, length=256)),
    "deberta training 256": (240, partial(deberta.train, length=256)),
}
