"""The server of the live page: asyncio streams in one daemon thread, without extra dependencies."""

from .followed import FollowedRuns
from .server import Server
from .source import RunSource

__all__ = ["FollowedRuns", "RunSource", "Server"]
