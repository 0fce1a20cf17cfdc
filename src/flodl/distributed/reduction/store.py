"""The store through which the members of a reduction find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

LOOPBACK = "127.0.0.1"


def host_store(host: str = LOOPBACK, *, port: int = 0, timeout_s: float = 60.0) -> TCPStore:
    """Start a store that listens on this address only; port 0 picks a free one.

    >>> store = host_store()
    >>> client = connect_store(store.port)
    >>> client.set("generation", "3")
    >>> store.get("generation")
    b'3'
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        # By default, a store listens on all addresses.
        master_listen_fd=listener.detach(),
    )


def connect_store(port: int, host: str = LOOPBACK, *, timeout_s: float = 60.0) -> TCPStore:
    """Connect to a store. A thread needs its own connection, because waiting blocks it."""
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))


def cancel(store: Store, generation: int) -> None:
    """Free the members of a generation that still wait for others, because one of them is lost.

    Members that already exchange data notice the loss themselves, when the connection closes.
    """
    store.set(cancel_key(generation), "1")


def cancel_key(generation: int) -> str:
    return f"g{generation}/cancelled"


def gradient_store(store: Store) -> Store:
    """Return the part of a store in which ranks meet that average gradients."""
    return PrefixStore("gradients", store)
