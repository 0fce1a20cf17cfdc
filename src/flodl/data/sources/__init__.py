"""What a loader can read, brought to three sorts: columns, samples and streams."""

from .columns import Columns
from .samples import Samples
from .source import Source, open_source
from .streams import Stream
from .tokens import TokenShards

__all__ = ["Columns", "Samples", "Source", "Stream", "TokenShards", "open_source"]
