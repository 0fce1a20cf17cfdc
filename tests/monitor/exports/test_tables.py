"""The CSV table and the text log of a run."""

import csv
import math

import pytest

from flodl.core import MonitorError
from flodl.monitor import Event, Monitor


def test_the_table_has_a_column_for_every_metric_of_any_epoch(monitor, tmp_path):
    monitor.emit(Event("resources", {"cpu_pct": 50.0, "gpus": [{"util_pct": 80.0}, {"util_pct": 90.0}]}))
    monitor.log(0, {"loss": 0.5, "=cmd()": 1.0}, duration=1.0)
    monitor.log(1, {"accuracy": 0.75, "loss": math.nan}, duration=2.0)
    with open(monitor.export_csv(tmp_path / "run.csv"), newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first)[:5] == ["epoch", "duration_s", "loss", "'=cmd()", "accuracy"]
    assert (first["loss"], first["accuracy"], first["'=cmd()"]) == ("0.5", "", "1")
    assert (second["loss"], second["accuracy"], second["'=cmd()"]) == ("nan", "0.75", "")
    assert (first["cpu_pct"], first["gpu_pct"]) == ("50", "85")


def test_a_run_without_epochs_exports_a_table_of_its_steps(monitor, tmp_path):
    monitor.log_step(0, {"loss": 0.5})
    monitor.log_step(2, {"loss": 0.25, "=lr": 0.1})
    text = monitor.export_csv(tmp_path / "run.csv").read_text()
    assert text == "step,loss,'=lr\n0,0.5,\n2,0.25,0.1\n"
    with pytest.raises(MonitorError, match="has no epochs yet"):
        monitor.write_log(tmp_path / "run.log")


def test_the_log_has_a_line_for_each_epoch_and_the_total(monitor, tmp_path):
    monitor.log(0, {"loss": 0.5}, duration=61.0)
    monitor.log(1, {"a b": 0.25}, duration=1.5)
    text = monitor.write_log(tmp_path / "run.log").read_text()
    assert text.splitlines() == [
        "# flodl training log",
        "epoch 1/3  loss=0.5000  [1m 01s]",
        'epoch 2/3  "a b"=0.2500  [1.5s]',
        "# total: 1m 02s",
    ]


def test_exporting_an_empty_run_raises(monitor, tmp_path):
    with pytest.raises(MonitorError, match="has no epochs yet, so there is nothing to export"):
        monitor.export_csv(tmp_path / "run.csv")


def test_large_numbers_and_names_in_any_script_stay_readable(monitor, tmp_path):
    monitor.log(0, {"norm": 1e30, "bytes": 34_359_738_368.0, "🏳️‍🌈": 1.0, "a\u202eb": 2.0}, duration=1.0)
    row = monitor.export_csv(tmp_path / "run.csv").read_text().splitlines()[1]
    assert row.startswith("1,1,1e+30,34359738368,1,2")
    line = monitor.write_log(tmp_path / "run.log").read_text().splitlines()[1]
    assert "norm=1.00e+30  bytes=3.44e+10  🏳️‍🌈=1.0000" in line
    assert '"a\\u202eb"=2.0000' in line


@pytest.mark.parametrize("method", ["export_csv", "write_log", "save_html"])
def test_an_export_to_a_path_that_cannot_be_written_raises(tmp_path, method):
    (tmp_path / "file").touch()
    with Monitor(1, tmp_path / "run", console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 0.5})
        with pytest.raises(
            MonitorError, match=r"cannot write to '.*/file/x': '.*/file' is a file, not a folder\."
        ):
            getattr(monitor, method)(tmp_path / "file" / "x")
