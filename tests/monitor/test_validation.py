"""Invalid arguments raise before anything is done, with the value and what to pass instead."""

import math

import pytest

from flodl.core import MonitorError
from flodl.monitor import Event, Monitor
from flodl.monitor.sinks import Csv


@pytest.mark.parametrize("total", ["runs/x", -1, 2.5, True, None])
def test_the_number_of_epochs_is_checked_first(total):
    with pytest.raises(MonitorError, match=r"total_epochs is .*Monitor\(10, 'runs/first'\)"):
        Monitor(total, console=False)


class NotASink:
    """Has neither write nor close, and cannot be called."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": [1]}, "config is [1]. Pass a dict"),
        ({"origins": "x"}, "origins is 'x'. Pass a dict"),
        ({"rank": -1}, "rank is -1. Ranks count from 0"),
        ({"console": "no"}, "console is 'no'. Pass True or False"),
        ({"resources": 1}, "resources is 1. Pass True or False"),
        ({"name": 5}, "name is 5. Pass a string"),
        ({"run_dir": ""}, "run_dir is ''. Pass a folder"),
        ({"run_dir": 5}, "run_dir is 5. Pass a folder"),
        ({"views": print}, "views is <built-in function print>. Pass a list of callables"),
        ({"views": [5]}, "views contains 5. Pass a list of callables"),
        ({"sinks": NotASink()}, "Pass a list of sinks, with write and close"),
        ({"sinks": [Csv]}, "Pass a list of sinks, with write and close"),
        ({"sinks": [None]}, "Pass a list of sinks, with write and close"),
        ({"step_rate": "fast"}, "step_rate is 'fast'. Pass a number of values per second"),
        ({"step_rate": 0}, "step_rate is 0. Pass a number of values per second"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(MonitorError) as caught:
        Monitor(1, **{"console": False, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda monitor, _: monitor.finish("done"),
            "status is 'done'. Expected one of finished, stopped, failed",
        ),
        (
            lambda monitor, _: monitor.alert("x", level="loud"),
            "level is 'loud'. Expected one of info, warning, error",
        ),
        (lambda monitor, _: monitor.serve(70_000), "port is 70000. Pass a port from 1 to 65535"),
        (lambda monitor, _: monitor.serve(-1), "port is -1. Pass a port"),
        (lambda monitor, _: monitor.serve("x"), "port is 'x'. Pass a port"),
        (lambda monitor, _: monitor.serve(0, token=5), "token is 5. Pass a string"),
        (lambda monitor, _: monitor.serve(0, token=""), "token is ''. Pass a string"),
        (lambda monitor, _: monitor.log("one", {"loss": 1.0}), "epoch is 'one'. Count epochs from 0"),
        (lambda monitor, _: monitor.log_step(0.5, {"loss": 1.0}), "step is 0.5. Pass an integer"),
        (lambda monitor, _: monitor.progress("a", 1, 2), "epoch is 'a'. Count epochs from 0"),
        (lambda monitor, _: monitor.progress(0, 1, -5), "num_steps is -5. Pass the number of steps"),
        (
            lambda monitor, _: monitor.emit(Event("alarm", {})),
            "unknown kind of event 'alarm'. Expected one of run_start",
        ),
        (lambda monitor, _: monitor.emit(Event("save", {})), "a save event has no path"),
        (lambda monitor, _: monitor.emit("epoch"), "expected an event, got 'epoch'. Pass one, as in Event("),
        (lambda monitor, _: monitor.emit({}), "expected an event, got {}"),
        (lambda monitor, folder: monitor.save_html(folder), "is a folder. Pass the file"),
        (lambda monitor, folder: monitor.export_csv(folder), "is a folder. Pass the file"),
        (lambda monitor, folder: monitor.write_log(folder), "is a folder. Pass the file"),
        (lambda monitor, _: monitor.save_html(5), "expected a path, got 5"),
        *(
            (lambda monitor, _, value=value: monitor.log(0, {"loss": 1.0}, value), f"duration is {value!r}.")
            for value in (-1, math.nan, math.inf, "1", True)
        ),
    ],
)
def test_invalid_arguments_raise_and_the_run_continues(monitor, tmp_path, call, message):
    monitor.progress(0, 1, 10)  # so that the next progress is within the rate limit, and still checked
    with pytest.raises(MonitorError) as caught:
        call(monitor, tmp_path)
    assert message in str(caught.value)
    assert monitor.history == []
    monitor.log(0, {"loss": 1.0})
    assert len(monitor.history) == 1
