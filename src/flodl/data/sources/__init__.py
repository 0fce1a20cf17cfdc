"""What a loader can read, converted to one of three kinds: columns, samples or streams."""

from .columns import Columns
from .samples import Samples
from .source import Source, open_source
from .streams import Stream
from .tokens import TokenShards

__all__ = ["Columns", "Samples", "Source", "Stream", "TokenShards", "open_source"]
