"""The live page's server: asyncio streams in one daemon thread, nothing to install, nothing to wait for."""

from .server import Server
from .source import FollowedRuns, RunSource

__all__ = ["FollowedRuns", "RunSource", "Server"]
