"""The supervisor's end of a connection that an engine carries."""

import select

import pytest

from flodl.distributed.placement.mail import letter, open_letter, pieces
from flodl.distributed.placement.relay import Relay
from flodl.distributed.ranks import Frames, to_frame


@pytest.fixture
def relay():
    sent = bytearray()
    found = Relay(sent.extend)
    found.sent = sent
    yield found
    found.close()


def is_readable(relay):
    return bool(select.select([relay], [], [], 0)[0])


def test_it_is_readable_while_there_are_messages(relay):
    assert not is_readable(relay)
    assert relay.receive() is None
    frame = to_frame("a") + to_frame("b")
    relay.feed(frame[:3])
    relay.feed(frame[3:])
    assert is_readable(relay)
    assert relay.receive() == ["a", "b"]
    assert relay.receive() is None
    assert not is_readable(relay)


def test_messages_before_the_end_are_received_first(relay):
    relay.feed(to_frame("last words"))
    relay.end("it is gone")
    relay.end("a later reason")
    assert relay.receive() == ["last words"]
    assert is_readable(relay)
    with pytest.raises(EOFError, match="it is gone"):
        relay.receive()


def test_it_forwards_frames_until_the_end(relay):
    relay.send({"one": 1})
    assert Frames().feed(bytes(relay.sent)) == [{"one": 1}]
    relay.end("it is gone")
    relay.send("nobody hears this")
    assert Frames().feed(bytes(relay.sent)) == [{"one": 1}]


def test_letters_carry_any_bytes():
    data = bytes(range(256)) * 3
    assert open_letter(letter("token", "data", data)) == ("token", "data", data)


def test_a_large_message_is_cut_into_pieces_that_a_store_accepts():
    data = bytes(9 << 20)
    found = list(pieces(data))
    assert b"".join(found) == data
    assert max(map(len, found)) < 8 << 20
