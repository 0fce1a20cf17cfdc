"""Sinks that write files, and the guard that keeps a sink from slowing down training."""

import csv
import io
import json
import math
import threading
import time

import pytest

from flodl.core import MonitorError, SetupError
from flodl.monitor import Event, Monitor, read
from flodl.monitor.sinks import Csv, Guarded, JsonLines, TensorBoard
from flodl.monitor.sinks.sink import numbers_of, settings_of
from flodl.monitor.sinks.tracker import require


class Collecting:
    """A sink that collects events while its gate is open."""

    def __init__(self):
        self.events = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False

    def write(self, event):
        assert self.gate.wait(30)
        self.events.append(event)

    def close(self):
        self.is_closed = True


class Broken:
    """A sink that fails a number of times, then works."""

    def __init__(self, failures):
        self.failures = failures
        self.num_calls = 0
        self.written = []

    def write(self, event):
        self.num_calls += 1
        if self.num_calls <= self.failures:
            raise OSError("disk full")
        self.written.append(event)

    def close(self):
        pass


def epoch(number, **metrics):
    return Event("epoch", {"epoch": number, "metrics": metrics, "duration_s": 2.0}, time_s=100.0 + number)


EVENTS = [
    Event("run_start", {"name": "digits", "config": [{"path": "lr", "value": 0.1}]}, time_s=100.0),
    Event("metrics", {"epoch": 0, "step": 7, "metrics": {"loss": 0.75}}, time_s=101.0),
    Event(
        "resources", {"cpu_pct": 5.0, "gpus": [{"device": 1, "name": "A", "util_pct": 50.0}]}, time_s=102.5
    ),
    epoch(0, **{"loss": 0.5, "encoder.accuracy": 0.9}),
    Event("alert", {"message": "hot", "level": "warning"}, time_s=103.0),
    epoch(1, loss=math.nan),
    Event("run_end", {"status": "finished"}, time_s=104.0),
]


def test_events_arrive_in_order_and_the_sink_is_closed():
    sink, alerts = Collecting(), []
    guarded = Guarded(sink, alerts.append)
    for event in EVENTS:
        guarded(event)
    assert guarded.close()
    assert sink.events == EVENTS
    assert sink.is_closed
    assert alerts == []


def test_a_blocking_sink_loses_the_oldest_events_with_one_alert():
    sink, alerts = Collecting(), []
    sink.gate.clear()
    guarded = Guarded(sink, alerts.append, capacity=4)
    for number in range(100):
        guarded(epoch(number))
    sink.gate.set()
    assert not guarded.close()
    assert [event.data["epoch"] for event in sink.events][-4:] == [96, 97, 98, 99]
    assert guarded.num_dropped == 100 - len(sink.events)
    (alert,) = alerts
    assert (alert.kind, alert.data["level"]) == ("alert", "warning")
    assert (
        "Collecting is missing events from now on: it cannot keep up, 4 events are queued"
        in alert.data["message"]
    )


def test_a_sink_that_never_returns_does_not_block_close():
    sink, alerts = Collecting(), []
    sink.gate.clear()
    guarded = Guarded(sink, alerts.append)
    for number in range(3):
        guarded(epoch(number))
    assert not guarded.close(limit_s=0.05)
    assert len(alerts) == 1
    assert "did not finish within 0.05 s" in alerts[0].data["message"]
    sink.gate.set()


def test_flush_waits_for_the_queue_and_only_once_for_a_sink_that_hangs():
    sink = Collecting()
    guarded = Guarded(sink)
    for number in range(20):
        guarded(epoch(number))
    assert guarded.flush(limit_s=10.0)
    assert len(sink.events) == 20
    sink.gate.clear()
    guarded(epoch(20))
    assert not guarded.flush(limit_s=0.05)
    started_s = time.monotonic()
    assert not guarded.flush(limit_s=60.0)
    assert time.monotonic() - started_s < 30.0
    sink.gate.set()
    assert guarded.close()


def test_a_failure_raises_one_alert_and_the_sink_is_retried():
    sink, alerts = Broken(failures=2), []
    guarded = Guarded(sink, alerts.append)
    for number in range(5):
        guarded(epoch(number))
    assert not guarded.close()
    assert [event.data["epoch"] for event in sink.written] == [2, 3, 4]
    assert guarded.num_dropped == 2
    assert [alert.data["message"] for alert in alerts] == [
        "Broken is missing events from now on: OSError: disk full. Training continues."
    ]


def test_a_sink_that_keeps_failing_is_disabled():
    sink, alerts = Broken(failures=100), []
    guarded = Guarded(sink, alerts.append)
    for number in range(50):
        guarded(epoch(number))
    guarded.close()
    guarded(epoch(50))
    assert sink.num_calls == 5
    assert guarded.num_dropped == 51
    assert len(alerts) == 1


def test_the_alert_can_be_sent_to_the_same_sink():
    sink = Broken(failures=1)
    guarded = Guarded(sink, lambda alert: guarded(alert))
    guarded(epoch(0))
    while not sink.written:
        threading.Event().wait(0.005)
    guarded.close()
    assert [event.kind for event in sink.written] == ["alert"]


def test_an_alert_that_cannot_be_emitted_is_a_warning(capsys):
    def refuse(alert):
        raise RuntimeError("the run has ended")

    for emit in (None, refuse):
        guarded = Guarded(Broken(failures=9), emit)
        guarded(epoch(0))
        guarded.close()
        assert capsys.readouterr().err.count("Broken is missing events from now on") == 1


def test_the_capacity_must_be_positive():
    with pytest.raises(MonitorError, match="capacity is 0"):
        Guarded(Collecting(), capacity=0)


def test_the_numbers_of_each_axis_have_their_own_prefix():
    found = [numbers_of(event, started_s=100.0) for event in EVENTS]
    assert found[0] is None
    assert found[1] == ("step", 7, {"step/loss": 0.75})
    assert found[2] == ("resources", 2, {"resources/cpu_pct": 5.0, "resources/gpu1/util_pct": 50.0})
    assert found[3] == ("epoch", 1, {"loss": 0.5, "encoder/accuracy": 0.9, "epoch/duration_s": 2.0})


def test_settings_that_become_known_later_are_written_too(tmp_path):
    sink = TensorBoard(tmp_path)
    for event in (EVENTS[0], Event("config", {"config": [{"path": "seed", "value": 3}]}, time_s=102.0)):
        sink.write(event)
    sink.close()
    (file,) = tmp_path.iterdir()
    assert b"| lr | 0.1 |\n| seed | 3 |" in file.read_bytes()


def test_settings_can_be_a_list_with_origins_or_a_dict():
    assert settings_of(EVENTS[0]) == {"lr": 0.1}
    assert settings_of(Event("run_start", {"config": {"lr": 0.1}})) == {"lr": 0.1}
    assert settings_of(Event("run_start", {})) == {}


def test_a_missing_package_raises_when_the_sink_is_created():
    with pytest.raises(SetupError, match="'no_such_tracker' is not installed"):
        require("no_such_tracker", install="no-such-tracker")


def test_json_lines_are_strict_and_appended(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    for _ in range(2):
        sink = JsonLines(path)
        for event in EVENTS:
            sink.write(event)
        sink.close()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert len(lines) == 2 * len(EVENTS)
    assert lines[5]["metrics"] == {"loss": "nan"}


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["epochs", "alert"], r"unknown kind of event 'epochs'. Expected one of run_start, epoch, "),
        ("epoch", r"kinds is 'epoch'. Pass a list of kinds of events, as in kinds=\['epoch'\]"),
        (3, r"kinds is 3. Pass a list of kinds of events, as in kinds=\['epoch', 'alert'\]"),
        ([["epoch"]], r"unknown kind of event \['epoch'\]"),
    ],
)
def test_kinds_that_do_not_exist_raise(tmp_path, kinds, message):
    with pytest.raises(MonitorError, match=message):
        JsonLines(tmp_path / "run.jsonl", kinds=kinds)
    assert not (tmp_path / "run.jsonl").exists()


def test_kinds_can_come_from_a_generator(tmp_path):
    sink = JsonLines(tmp_path / "run.jsonl", kinds=(kind for kind in ["epoch"]))
    for event in EVENTS:
        sink.write(event)
    sink.close()
    found = [json.loads(line)["kind"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert found == ["epoch"] * sum(event.kind == "epoch" for event in EVENTS)


def test_values_that_json_cannot_represent_are_written_as_text(tmp_path):
    sink = JsonLines(tmp_path / "run.jsonl")
    sink.write(Event("save", {"path": tmp_path, "parts": (1, math.inf), 3: "key"}, time_s=0.0))
    sink.close()
    record = json.loads((tmp_path / "run.jsonl").read_text())
    assert (record["path"], record["parts"], record["3"]) == (str(tmp_path), [1, "inf"], "key")


def rows(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_new_columns_are_added_and_existing_rows_stay_valid(tmp_path):
    path = tmp_path / "run.csv"
    sink = Csv(path)
    for event in EVENTS:
        sink.write(event)
    sink.close()
    first, second, third = rows(path)
    assert (first["epoch"], first["step"], first["loss"], first["encoder.accuracy"]) == ("1", "7", "0.75", "")
    assert (second["epoch"], second["step"], second["encoder.accuracy"]) == ("1", "", "0.9")
    assert third["loss"] == "nan"


def test_a_table_is_continued_after_a_resume(tmp_path):
    path = tmp_path / "run.csv"
    for number, name in enumerate(["loss", "accuracy"]):
        sink = Csv(path)
        sink.write(epoch(number, **{name: 0.5}))
        sink.close()
    assert [(row["loss"], row["accuracy"]) for row in rows(path)] == [("0.5", ""), ("", "0.5")]


def test_an_epoch_that_is_logged_again_replaces_its_row_and_those_of_later_epochs(tmp_path):
    path = tmp_path / "run.csv"
    for numbers, loss in [((0, 1, 2), 0.5), ((1,), 0.25)]:
        sink = Csv(path)
        sink.write(Event("metrics", {"epoch": numbers[-1], "step": 7, "metrics": {"loss": 0.75}}, time_s=1.0))
        for number in numbers:
            sink.write(epoch(number, loss=loss))
        sink.close()
    assert [(row["epoch"], row["step"], row["loss"]) for row in rows(path)] == [
        ("1", "", "0.5"),
        ("2", "7", "0.75"),
        ("2", "", "0.25"),
    ]


def step(number, *, epoch=0, **metrics):
    return Event("metrics", {"epoch": epoch, "step": number, "metrics": metrics}, time_s=1.0)


def test_a_step_that_is_logged_again_replaces_its_metrics_from_there_on(tmp_path):
    path = tmp_path / "run.csv"
    for first, last, loss in ((0, 4, 0.5), (3, 5, 0.25), (2, 3, 0.125)):
        sink = Csv(path)
        for number in range(first, last + 1):
            sink.write(step(number, loss=loss))
        sink.close()
    found = [(row["step"], row["loss"]) for row in rows(path)]
    assert found == [("0", "0.5"), ("1", "0.5"), ("2", "0.125"), ("3", "0.125")]


def test_other_metrics_of_a_step_stay_when_one_is_logged_again(tmp_path):
    path = tmp_path / "run.csv"
    sink = Csv(path)
    sink.write(step(0, loss=1.0, norm=1.0))
    sink.write(step(1, loss=2.0, norm=2.0))
    sink.write(step(1, accuracy=0.5))  # two calls per step
    sink.write(step(0, norm=3.0))
    sink.write(step(0, accuracy=0.75))
    sink.close()
    found = [(row["step"], row["loss"], row["norm"], row["accuracy"]) for row in rows(path)]
    assert found == [
        ("0", "1.0", "", ""),
        ("1", "2.0", "", ""),
        ("0", "", "3.0", ""),
        ("0", "", "", "0.75"),
    ]


def test_an_epoch_that_is_logged_again_replaces_the_steps_of_later_epochs(tmp_path):
    path = tmp_path / "run.csv"
    sink = Csv(path)
    for number in range(3):
        sink.write(step(number, epoch=number, loss=0.5))
        sink.write(epoch(number, loss=0.5))
    sink.write(epoch(2, loss=0.25))  # the last epoch again: nothing was logged after it
    sink.write(epoch(0, loss=0.125))
    sink.close()
    assert [(row["epoch"], row["step"], row["loss"]) for row in rows(path)] == [
        ("1", "0", "0.5"),
        ("1", "", "0.125"),
    ]


def test_an_epoch_that_is_restored_is_written_only_if_it_has_no_row(tmp_path):
    path = tmp_path / "run.csv"
    sink = Csv(path)
    sink.write(epoch(0, loss=0.5))
    sink.close()
    sink = Csv(path)
    for number in (0, 1):
        sink.write(Event("epoch", {"epoch": number, "metrics": {"loss": 0.25}, "restored": True}))
    sink.close()
    assert [(row["epoch"], row["loss"]) for row in rows(path)] == [("1", "0.5"), ("2", "0.25")]


def test_a_row_that_a_crash_truncated_does_not_affect_the_next(tmp_path):
    path = tmp_path / "run.csv"
    Csv(path).close()
    with open(path, "a") as file:
        file.write("1,7,10")
    sink = Csv(path)
    sink.write(epoch(1, loss=0.5))
    sink.close()
    assert [(row["epoch"], row["loss"]) for row in rows(path)] == [("1", ""), ("2", "0.5")]


def test_names_that_a_spreadsheet_would_run_are_escaped(tmp_path):
    sink = Csv(tmp_path / "run.csv")
    sink.write(epoch(0, **{"=1+1": 1.0, "epoch": 7.0, 'a,"b': 2.0}))
    sink.close()
    (row,) = rows(tmp_path / "run.csv")
    assert (row["'=1+1"], row["epoch"], row["'epoch"], row['a,"b']) == ("1.0", "1", "7.0", "2.0")


def test_tensorboard_reads_the_written_file(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    sink = TensorBoard(tmp_path)
    for event in EVENTS:
        sink.write(event)
    sink.write(epoch(9, late=1.0))
    sink.close()
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    tags = found.Tags()
    assert sorted(tags["scalars"]) == [
        "encoder/accuracy",
        "epoch/duration_s",
        "loss",
        "resources/cpu_pct",
        "resources/gpu1/util_pct",
        "step/loss",
    ]
    assert [(point.step, point.wall_time) for point in found.Scalars("loss")] == [(1, 100.0), (2, 101.0)]
    assert found.Scalars("loss")[0].value == 0.5
    assert math.isnan(found.Scalars("loss")[1].value)
    assert [(point.step, point.value) for point in found.Scalars("step/loss")] == [(7, 0.75)]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0] for tag in tags["tensors"]}
    assert texts["alerts/text_summary"] == b"warning: hot"
    assert b"| lr | 0.1 |" in texts["settings/text_summary"]


def test_names_of_any_kind_survive_tensorboard(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    names = ["<script>alert(1)</script>", "größe", "x" * 5000]
    sink = TensorBoard(tmp_path)
    sink.write(epoch(0, **dict.fromkeys(names, 1.0)))
    sink.write(epoch(2**40, loss=1.0))
    sink.close()
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert {*names} <= {*found.Tags()["scalars"]}
    assert found.Scalars("loss")[0].step == 2**40 + 1


def test_two_runs_in_one_folder_have_separate_files(tmp_path):
    for _ in range(2):
        TensorBoard(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_sink_that_calls_exit_only_disables_itself():
    class Exits:
        def write(self, event):
            raise SystemExit(1)

        def close(self):
            raise SystemExit(2)

    alerts = []
    guarded = Guarded(Exits(), alerts.append)
    guarded(Event("epoch", {"epoch": 0}))
    assert not guarded.close()
    assert [alert.data["message"] for alert in alerts] == [
        "Exits is missing events from now on: SystemExit: 1. Training continues."
    ]


def test_rows_are_in_the_order_of_the_calls(tmp_path):
    path = tmp_path / "run.csv"
    with Monitor(2, tmp_path, console=False, resources=False, step_rate=None, sinks=[Csv(path)]) as monitor:
        for epoch in range(2):
            for number in range(3):
                monitor.log_step(epoch * 3 + number, {"loss": 0.5}, epoch=epoch)
            monitor.log(epoch, {"loss": 0.5})
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [row["step"] for row in rows] == ["0", "1", "2", "", "3", "4", "5", ""]


def test_a_failure_while_closing_a_sink_is_recorded_in_the_journal(tmp_path):
    class Late:
        def write(self, event):
            pass

        def close(self):
            raise OSError("disk full")

    with Monitor(1, tmp_path, console=False, resources=False, sinks=[Late()]):
        pass
    events = [entry.event for entry in read(tmp_path)]
    assert [event.kind for event in events if event.kind != "gc"] == ["run_start", "run_end", "alert"]
    assert "Late is missing events from now on: OSError: disk full" in events[-1].data["message"]


def test_an_empty_folder_for_tensorboard_is_an_error():
    with pytest.raises(MonitorError, match="expected a folder, got ''"):
        TensorBoard("")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: TensorBoard(file), "'.*file' is a file. Pass a folder."),
        (lambda file: TensorBoard(file / "board"), "cannot write to '.*board': '.*file' is a file"),
        (lambda file: TensorBoard(None), "expected a folder, got None"),
        (lambda file: TensorBoard(), r"TensorBoard needs 'folder'. Write TensorBoard\('board'\)."),
        (lambda file: Csv(file.parent), "is a folder. Pass the file to write in it."),
        (lambda file: Csv(file / "run.csv"), "cannot write to '.*run.csv': '.*file' is a file"),
        (lambda file: Csv(""), "expected a path, got ''. Pass the file to write."),
        (lambda file: Csv(file, kinds=["epoch"]), "Csv has no argument 'kinds'"),
        (lambda file: JsonLines(3), "expected a path, got 3. Pass the file to write."),
        (lambda file: JsonLines(file, ["epoch"]), "JsonLines got .*takes only path that way"),
        (lambda file: Guarded(3), "Guarded got 3. Pass a sink"),
    ],
)
def test_wrong_arguments_of_a_sink_raise(tmp_path, make, message):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(MonitorError, match=message):
        make(file)
