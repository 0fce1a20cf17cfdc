"""Members change at declared points only, and what an earlier member reports is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.core import DistributedError
from flodl.distributed.coordination import Membership


def of(*ranks):
    membership = Membership()
    for rank in ranks:
        membership.join(rank)
    membership.publish()
    return membership


def test_changes_take_effect_when_they_are_published():
    membership = of(0, 1)
    membership.join(2)
    membership.lose(0, "no heartbeat")
    assert membership.members == (0, 1)
    generation = membership.publish()
    assert (generation.number, generation.members) == (2, (1, 2))
    assert (generation.added, generation.removed) == ((2,), (0,))
    assert generation.reason == "rank 0 is lost: no heartbeat; rank 2 joins"
    assert membership.publish() is None


def test_a_lost_rank_is_refused_before_the_next_generation_is_published():
    membership = of(0, 1)
    assert membership.refusal(1, generation=1) is None
    membership.lose(1, "no heartbeat")
    assert membership.refusal(1, generation=1) == "rank 1 is lost: no heartbeat; it may join again"
    membership.publish()
    assert membership.refusal(1, generation=1) == "rank 1 is not a member of generation 2; it may join again"


def test_a_member_may_report_from_an_earlier_generation_but_not_from_one_that_was_not_published():
    membership = of(0, 1)
    membership.join(2)
    membership.publish()
    assert membership.refusal(0, generation=1) is None
    assert membership.refusal(2, generation=1) == "rank 2 of generation 1 was replaced in generation 2"
    assert membership.refusal(0, generation=3) == "generation 3 was not published; the last one is 2"


def test_a_rank_that_ends_before_it_is_admitted_never_becomes_a_member():
    membership = of(0)
    membership.join(1)
    membership.lose(1, "its process ended")
    assert membership.publish() is None
    assert membership.members == (0,)


def test_a_member_cannot_join_twice():
    membership = of(0)
    with pytest.raises(DistributedError, match=r"rank 0 is already a member\. Report it as lost first"):
        membership.join(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["join", "lose", "leave", "publish", "save"]), st.integers(0, 3))))
def test_generations_only_grow_and_members_are_those_that_joined_and_are_not_gone(events):
    membership, expected, published = Membership(), set(), 0
    for action, rank in events:
        if action == "join" and not membership.is_known(rank):
            membership.join(rank)
            expected.add(rank)
        elif action == "lose":
            membership.lose(rank, "test")
            expected.discard(rank)
        elif action == "leave":
            membership.leave(rank)
            expected.discard(rank)
        elif action == "save":
            again = Membership()
            again.restore(json.loads(json.dumps(membership.state())))
            membership = again
        elif (generation := membership.publish()) is not None:
            assert generation.number == published + 1
            published = generation.number
            assert set(generation.members) == expected
