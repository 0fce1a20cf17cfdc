"""flodl: a deep learning framework on PyTorch, with models as graphs and training you can watch.

Names are loaded on first use, so `import flodl` is fast and does not import torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "ArgmaxSelector": "graph",
    "FixedSelector": "graph",
    "FlodlError": "core",
    "FlowBuilder": "graph",
    "Graph": "graph",
    "GraphError": "core",
    "LearnedHalt": "graph",
    "LoadReport": "checkpoint",
    "Loader": "data",
    "Monitor": "monitor",
    "PathError": "core",
    "Rng": "core",
    "SigmoidRouter": "graph",
    "SoftmaxRouter": "graph",
    "ThresholdHalt": "graph",
    "TopKRouter": "graph",
    "TrainStep": "engine",
    "Trainer": "train",
    "Trend": "observe",
    "TrendGroup": "observe",
    "checkpoint_keys": "checkpoint",
    "load_checkpoint": "checkpoint",
    "manual_seed": "core",
    "migrate_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "set_verbosity": "core",
    "summary": "graph",
}
_PACKAGES = (
    "checkpoint",
    "core",
    "data",
    "engine",
    "graph",
    "hf",
    "monitor",
    "nn",
    "observe",
    "optim",
    "train",
)

__all__ = [
    "ArgmaxSelector",
    "FixedSelector",
    "FlodlError",
    "FlowBuilder",
    "Graph",
    "GraphError",
    "LearnedHalt",
    "LoadReport",
    "Loader",
    "Monitor",
    "PathError",
    "Rng",
    "SigmoidRouter",
    "SoftmaxRouter",
    "ThresholdHalt",
    "TopKRouter",
    "TrainStep",
    "Trainer",
    "Trend",
    "TrendGroup",
    "checkpoint_keys",
    "load_checkpoint",
    "manual_seed",
    "migrate_checkpoint",
    "save_checkpoint",
    "set_verbosity",
    "summary",
]

TYPE_CHECKING = False  # importing `typing` takes 10 ms
if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from . import core as core
    from . import data as data
    from . import engine as engine
    from . import graph as graph
    from . import hf as hf
    from . import monitor as monitor
    from . import nn as nn
    from . import observe as observe
    from . import optim as optim
    from . import train as train
    from .checkpoint import (
        LoadReport,
        checkpoint_keys,
        load_checkpoint,
        migrate_checkpoint,
        save_checkpoint,
    )
    from .core import FlodlError, GraphError, PathError, Rng, manual_seed, set_verbosity
    from .data import Loader
    from .engine import TrainStep
    from .graph import (
        ArgmaxSelector,
        FixedSelector,
        FlowBuilder,
        Graph,
        LearnedHalt,
        SigmoidRouter,
        SoftmaxRouter,
        ThresholdHalt,
        TopKRouter,
        summary,
    )
    from .monitor import Monitor
    from .observe import Trend, TrendGroup
    from .train import Trainer
else:

    def __getattr__(name):
        if name in _PACKAGES:
            return import_module(f".{name}", __name__)
        if name not in _HOME:
            raise AttributeError(f"module 'flodl' has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted([*__all__, *_PACKAGES, "__version__"])
