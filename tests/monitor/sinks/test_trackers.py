"""The real trackers, where they are installed: runs can be read back from their stores."""

import math
import sqlite3
import time
from importlib.util import find_spec

import pytest

from flodl.core import SetupError
from flodl.monitor.events import Event
from flodl.monitor.sinks import Guarded, MLflow, Trackio, WandB

EVENTS = [
    Event("run_start", {"name": "digits", "config": [{"path": "optimizer.lr", "value": 0.1}]}, time_s=100.0),
    Event("metrics", {"epoch": 0, "step": 7, "metrics": {"loss": 0.75}}, time_s=101.0),
    Event("resources", {"cpu_pct": 5.0, "gpus": [{"device": 0, "util_pct": 50.0}]}, time_s=102.0),
    Event("epoch", {"epoch": 0, "metrics": {"loss": 0.5, "<script>": 1.0}, "duration_s": 2.0}, time_s=103.0),
    Event("alert", {"message": "hot", "level": "warning"}, time_s=103.0),
    Event("epoch", {"epoch": 1, "metrics": {"loss": math.nan}, "duration_s": 2.0}, time_s=104.0),
    Event("run_end", {"status": "finished"}, time_s=105.0),
    Event("alert", {"message": "after the end"}, time_s=106.0),
]

# Their own dependencies warn about each other.
pytestmark = pytest.mark.filterwarnings("ignore")


def send(sink):
    alerts = []
    guarded = Guarded(sink, alerts.append)
    for event in EVENTS:
        guarded(event)
    assert guarded.close(limit_s=120), alerts
    assert alerts == []


def test_mlflow_stores_the_run_with_its_settings_and_metrics(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking", reason="needs mlflow")
    pytest.importorskip("alembic", reason="needs alembic, for MLflow's SQLite store")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    send(MLflow(uri, experiment="tests"))
    client = tracking.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert (run.info.run_name, run.info.status) == ("digits", "FINISHED")
    assert run.data.params == {"optimizer.lr": "0.1"}
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.timestamp) for point in history] == [(1, 103_000), (2, 104_000)]
    assert run.data.metrics["_script_"] == 1.0
    assert run.data.metrics["resources/gpu0/util_pct"] == 50.0


def test_wandb_writes_an_offline_run(tmp_path):
    pytest.importorskip("wandb", reason="needs wandb")
    send(WandB("tests", folder=tmp_path))
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    words = (b"digits", b"step/loss", b"epoch/number", b"optimizer.lr")
    # A separate process writes the file, some time after the run has finished.
    for _ in range(400):
        if all(word in log.read_bytes() for word in words):
            return
        time.sleep(0.05)
    raise AssertionError(f"the run is not in its file: {log.read_bytes()!r}")


def test_trackio_stores_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="needs trackio")
    from trackio import utils

    folder = tmp_path if str(utils.TRACKIO_DIR) == str(tmp_path) else utils.TRACKIO_DIR
    send(Trackio("flodl-tests"))
    with sqlite3.connect(f"{folder}/flodl-tests.db") as store:
        rows = store.execute("select metrics from metrics").fetchall()
    assert any("step/loss" in str(row) for row in rows)


@pytest.mark.parametrize(("sink", "module"), [(MLflow, "mlflow"), (WandB, "wandb"), (Trackio, "trackio")])
def test_a_tracker_that_is_not_installed_raises_with_the_install_command(sink, module):
    if find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(SetupError, match=f"'{module}' is not installed. Install it .pip install"):
        sink()
