"""Resident or streaming: chosen from measured sizes, with a reason and a fallback when memory is full."""

import pytest
import torch

from flodl.core import DataError
from flodl.data import Loader
from flodl.data.loading.placement import allowed_bytes, check_memory_cap, choose_mode

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
GB = 2**30


def decide(mode="auto", **facts):
    usual = {"device": CUDA, "num_bytes": GB, "is_on_device": False, "free_bytes": 8 * GB, "memory_cap": 0.5}
    return choose_mode(mode, **{**usual, **facts})


@pytest.mark.parametrize(
    ("facts", "mode", "reason"),
    [
        (
            {},
            "resident",
            "the data takes 1.0 GB, and memory_cap=0.5 allows 4.0 GB of the 8.0 GB free on cuda:0",
        ),
        (
            {"num_bytes": 5 * GB},
            "streaming",
            "the data takes 5.0 GB, but memory_cap=0.5 allows 4.0 GB of the 8.0 GB free on cuda:0",
        ),
        (
            {"memory_cap": 100},
            "streaming",
            "the data takes 1.0 GB, but memory_cap=100 allows 100 B of the 8.0 GB free on cuda:0",
        ),
        ({"num_bytes": 4 * GB}, "resident", None),
        ({"num_bytes": 4 * GB + 1}, "streaming", None),
        ({"is_on_device": True, "free_bytes": 0}, "resident", "the data (1.0 GB) is already on cuda:0"),
        (
            {"device": CPU, "free_bytes": None, "is_on_device": True},
            "resident",
            "the data (1.0 GB) is already in host memory",
        ),
        (
            {"device": CPU, "free_bytes": None},
            "streaming",
            "the data (1.0 GB) stays in memory-mapped files",
        ),
        (
            {"device": torch.device("mps"), "free_bytes": None},
            "streaming",
            "the free memory of mps is unknown",
        ),
        ({"num_bytes": None, "obstacle": "rows are text"}, "streaming", "rows are text"),
        ({"mode": "streaming"}, "streaming", "mode='streaming' was requested"),
        ({"mode": "resident", "num_bytes": 50 * GB}, "resident", "mode='resident' was requested"),
    ],
)
def test_the_mode_depends_on_sizes_and_has_a_reason(facts, mode, reason):
    placement = decide(**facts)
    assert placement.mode == mode
    assert reason is None or placement.reason == reason


def test_a_memory_cap_is_a_fraction_or_a_number_of_bytes():
    assert (allowed_bytes(1000, 1.0), allowed_bytes(1000, 0)) == (1000, 0)
    for wrong in (0.0, 1.5, -3, True, "half"):
        with pytest.raises(DataError, match="memory_cap="):
            check_memory_cap(wrong)


class Full:
    """A memory-mapped source that raises the error of a full device when it is copied there."""

    num_samples, num_bytes, mapped, device = 6, 24, True, CPU

    def take(self, indices):
        return indices * 10

    def to(self, device):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")


def test_out_of_memory_falls_back_to_streaming_with_one_warning(capsys):
    given = Loader(Full(), 4, shuffle=False, mode="resident")
    reason = "the data did not fit on cpu (CUDA out of memory. Tried to allocate 2.00 GiB)"
    assert (given.mode, given.reason) == ("streaming", reason)
    assert [batch.tolist() for batch in given] == [[0, 10, 20, 30], [40, 50]]
    assert capsys.readouterr().err == f"Loader: streaming instead of resident: {reason}.\n"
