"""Where ranks run, as data; and what `fdl launch` starts."""

import sys

import pytest

from flodl.core import DistributedError
from flodl.core.environment import LAUNCH
from flodl.distributed.placement import Placement, launched_placement, parse_ranks
from flodl.distributed.placement.commands import plan_launch


@pytest.mark.parametrize(
    "placement",
    [
        Placement(),
        Placement(devices=("cuda:0", "cpu")),
        Placement(on="ray", ranks=(2, 8), address="10.0.0.1:6379"),
        Placement(on="torchrun", ranks=(3, 3), address="10.0.0.2", num_restarts=2, session="x"),
    ],
)
def test_a_placement_survives_the_environment(placement, monkeypatch):
    monkeypatch.setenv(LAUNCH, placement.to_json())
    assert launched_placement() == placement


def test_a_program_that_was_started_plainly_has_no_placement(monkeypatch):
    monkeypatch.delenv(LAUNCH, raising=False)
    assert launched_placement() is None


@pytest.mark.parametrize("text", ["{", "[]", '{"hosts": 3}', '{"ranks": 3}'])
def test_a_wrong_variable_is_an_error_that_names_it(text, monkeypatch):
    monkeypatch.setenv(LAUNCH, text)
    with pytest.raises(DistributedError, match="FLODL_LAUNCH"):
        launched_placement()


@pytest.mark.parametrize("text", ["0", "-1", "two", "4:2", "", "1:", ":3"])
def test_a_wrong_number_of_ranks_is_an_error(text):
    if text == "1:":
        assert parse_ranks(text) == (1, 1)
        return
    with pytest.raises(DistributedError, match="is not a number of ranks"):
        parse_ranks(text)


@pytest.mark.parametrize(
    ("placement", "options", "message"),
    [
        (Placement(address="10.0.0.1:1"), {}, "--address 10.0.0.1:1 is for"),
        (Placement(ranks=(1, 2)), {}, "a range of ranks is for --on ray"),
        (Placement(), {"hosts": "2"}, "--hosts is for torchrun"),
        (Placement(), {"restarts": 2}, "--restarts is for torchrun"),
        (Placement(on="torchrun"), {"hosts": "2"}, "several hosts need an address"),
        (Placement(on="torchrun", ranks=(1, 2)), {}, "the number of ranks per host is fixed"),
        (Placement(on="torchrun", address="10.0.0.1"), {"hosts": "2"}, "has no port"),
        (Placement(on="torchrun", address="no-such-host.invalid:1"), {"hosts": "2"}, "cannot be found"),
    ],
)
def test_options_that_do_not_fit_the_engine_are_errors(placement, options, message):
    with pytest.raises(DistributedError, match=message):
        plan_launch(placement, ["train.py"], **options)


def test_torchrun_gets_the_address_of_this_host_and_runs_the_script_once():
    launch = plan_launch(
        Placement(on="torchrun", ranks=(2, 2), address="127.0.0.1:29400"), ["train.py", "-x"], hosts="1:3"
    )
    words = " ".join(launch.command)
    assert words.startswith(f"{sys.executable} -m torch.distributed.run --nnodes 1:3 --nproc-per-node 2")
    assert "--rdzv-endpoint 127.0.0.1:29400" in words
    assert "--rdzv-conf is_host=True --local-addr 127.0.0.1" in words
    assert words.endswith("-m flodl.distributed.placement.torchrun_rank train.py -x")
    assert launch.starts[0] == "supervisor: a process on the host of rank 0, runs train.py"
