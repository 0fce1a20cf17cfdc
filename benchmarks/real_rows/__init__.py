"""The rows of `benchmarks/real_models.py`: models of transformers and torchvision as users train them."""

from __future__ import annotations

from functools import partial

from .measure import measure
from .models import MODELS

# In the order of importance.
ROWS = {name: (300.0, partial(measure, name=name)) for name in MODELS}
