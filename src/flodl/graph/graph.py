"""`Graph`: the model that `FlowBuilder` builds."""

from __future__ import annotations

from flodl.core import GraphError
from flodl.core.usage.attributes import fix_properties

from .checkpointing import GraphCheckpoints
from .timings import GraphTimings


class GraphAttributeError(GraphError, AttributeError):
    """A property of a graph was assigned."""


@fix_properties(
    GraphAttributeError,
    called="model",
    instead={"label": "Name it while building: FlowBuilder(…).label('encoder').build()."},
)
class Graph(GraphCheckpoints, GraphTimings):
    """A model built by `FlowBuilder`: call it, look at it, address its parts by dotted paths.

    The methods are in the base classes: `GraphCore` runs the nodes, `GraphTree` resolves paths,
    `GraphMetrics` records, `GraphHashes` hashes, `GraphCheckpoints` saves and loads, `GraphDrawing`
    draws and profiles, `GraphTimings` follows the times of profiles.

    >>> import torch
    >>> from torch import nn
    >>> from flodl import FlowBuilder
    >>> model = FlowBuilder(nn.Linear(2, 8)).through(nn.GELU()).tag("hidden").through(nn.Linear(8, 1)).build()
    >>> model(torch.zeros(3, 2)).shape, model.tagged("hidden").shape
    (torch.Size([3, 1]), torch.Size([3, 8]))
    >>> [name for name, _ in model.named_parameters()]
    ['linear_1.weight', 'linear_1.bias', 'linear_2.weight', 'linear_2.bias']
    """
