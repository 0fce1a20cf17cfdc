"""What runs in the process of a rank: the interface of a worker, and the loop around it."""

from .channel import Channel, Connection, Frames, Link, Packed, SocketChannel, to_frame
from .faults import Fault, Faults
from .messages import (
    Adopted,
    Beat,
    Consensus,
    Donate,
    Donation,
    End,
    Failure,
    Fetch,
    Receive,
    Report,
    Save,
    Saved,
    Start,
    Tell,
)
from .worker import RankInfo, Trained, Worker, WorkerFactory

__all__ = [
    "Adopted",
    "Beat",
    "Channel",
    "Connection",
    "Consensus",
    "Donate",
    "Donation",
    "End",
    "Failure",
    "Fault",
    "Faults",
    "Fetch",
    "Frames",
    "Link",
    "Packed",
    "RankInfo",
    "Receive",
    "Report",
    "Save",
    "Saved",
    "SocketChannel",
    "Start",
    "Tell",
    "Trained",
    "Worker",
    "WorkerFactory",
    "to_frame",
]
