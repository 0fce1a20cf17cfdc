"""The server of the live page: asyncio streams in one daemon thread, without extra dependencies."""

from .server import Server
from .source import FollowedRuns, RunSource

__all__ = ["FollowedRuns", "RunSource", "Server"]
