"""What a loader can read, converted to one of four kinds: columns, samples, batches or streams."""

from .batches import Batches, BatchMaker, BatchSource
from .columns import Columns
from .samples import Samples
from .source import Source, open_source
from .streams import Stream
from .tokens import TokenShards

__all__ = [
    "BatchMaker",
    "BatchSource",
    "Batches",
    "Columns",
    "Samples",
    "Source",
    "Stream",
    "TokenShards",
    "open_source",
]
