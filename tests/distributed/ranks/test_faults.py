"""Faults that tests inject."""

import pytest

from flodl.core import DistributedError
from flodl.distributed.ranks import Fault, Faults


def test_a_fault_happens_once_at_its_point_and_window_to_its_rank():
    fault = Fault(1, "batch", 2, "exit", skip=1)
    other, own = Faults((fault,), rank=0), Faults((fault,), rank=1)
    for _ in range(3):
        other.reach("batch", 2)
    own.reach("batch", 1)
    own.reach("plan", 2)
    own.reach("batch", 2)
    with pytest.raises(SystemExit):
        own.reach("batch", 2)
    own.reach("batch", 2)


@pytest.mark.parametrize(("name", "options"), [("point", ("lunch", 0)), ("action", ("plan", 0, "smile"))])
def test_an_unknown_point_or_action_is_an_error(name, options):
    with pytest.raises(DistributedError, match=f"at '{name}': expected one of"):
        Fault(0, *options)
