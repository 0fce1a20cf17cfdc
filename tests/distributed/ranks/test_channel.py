"""Messages between the supervisor and a rank."""

import socket
import threading

import pytest

from flodl.distributed.ranks import Link, SocketChannel


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    link, channel = Link(one), SocketChannel(other)
    yield link, channel
    link.close()
    channel.close()


def test_messages_arrive_in_order_and_complete(pair):
    link, channel = pair
    for number in range(100):
        channel.send({"number": number})
    received = []
    while len(received) < 100:
        received += link.receive() or []
    assert [message["number"] for message in received] == list(range(100))
    assert link.receive() is None


def test_a_rank_that_does_not_read_does_not_block_the_supervisor(pair):
    link, channel = pair
    big = bytes(8 << 20)
    link.send(big)
    link.send("after it")
    assert link.has_output
    received = []
    reader = threading.Thread(target=lambda: received.extend(channel.receive() for _ in range(2)))
    reader.start()
    while link.has_output:
        link.flush()
    reader.join()
    assert received == [big, "after it"]


def test_a_message_that_is_incomplete_does_not_block_the_supervisor():
    one, other = socket.socketpair()
    link = Link(one)
    other.send(b"\0\0\0\0\0\0\1\0half of a message")
    assert link.receive() == []
    assert link.receive() is None
    link.close()
    other.close()


def test_the_end_of_a_connection_is_noticed_on_both_sides():
    one, other = socket.socketpair()
    link, channel = Link(one), SocketChannel(other)
    link.close()
    with pytest.raises(EOFError, match="the supervisor is gone"):
        channel.receive()
    channel.close()
    one, other = socket.socketpair()
    link = Link(one)
    other.close()
    with pytest.raises(EOFError, match="its connection ended"):
        link.receive()
    # What is sent to a rank that is gone is dropped.
    link.send("nobody reads this")
    assert not link.has_output
    link.close()


def test_receiving_can_time_out(pair):
    _, channel = pair
    assert channel.receive(timeout_s=0.01) is None
