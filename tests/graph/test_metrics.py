"""Metrics of a graph by dotted name, recorded without waiting for the device."""

import csv
import math

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, PathError
from flodl.core import MetricError

from .nodes import Double, NoHostReads, Triple

X = torch.tensor([[1.0, 2.0], [3.0, 6.0]])


@pytest.fixture
def model():
    scan = FlowBuilder(Double()).tag("hidden").label("scan").build()
    encoder = FlowBuilder(scan).label("encoder").build()
    flow = FlowBuilder(encoder).split([Double(), Triple()]).tag_group("heads").merge("add").tag("out")
    return flow.through(FlowBuilder(nn.Linear(2, 2)).build()).build()


def test_a_value_is_recorded_here_or_in_a_subgraph(model):
    for value in (1.0, 3.0):
        model.record("loss", value)
        model.record("encoder.scan.loss", torch.tensor(10 * value))
        model.record("graph_2.loss", value)
    model.end_epoch()
    assert model.latest_metrics() == {"loss": 2.0, "encoder.scan.loss": 20.0, "graph_2.loss": 2.0}
    assert model.subgraph("encoder").latest_metrics() == {"scan.loss": 20.0}


def test_a_weight_makes_the_mean_exact_for_a_ragged_batch(model):
    model.record("loss", 1.0, weight=3)
    model.record("loss", 5.0, weight=1)
    model.flush()
    assert model.latest_metrics() == {"loss": 2.0}


def test_a_metric_of_an_unknown_subgraph_is_rejected(model):
    with pytest.raises(PathError) as caught:
        model.record("encodr.loss", 1.0)
    assert str(caught.value).startswith(
        "the metric 'encodr.loss' belongs to 'encodr', which is not a subgraph. "
        "'encodr' is neither a subgraph nor a tag. Did you mean 'encoder'"
    )


@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", 6.0), ("sum", 24.0), ("max", 12.0), ("min", 2.0), ("norm", 200**0.5)]
)
def test_a_tag_is_collected_as_one_number(model, reduce, expected):
    model(X)
    model.collect("encoder.scan.hidden", reduce=reduce)
    model.flush()
    assert model.latest_metrics() == {"encoder.scan.hidden": pytest.approx(expected)}


def test_groups_are_collected_tag_by_tag(model):
    model(X)
    model.collect("heads", "out")
    model.flush()
    assert model.latest_metrics() == pytest.approx({"heads_0": 12.0, "heads_1": 18.0, "out": 30.0})
    assert set(model.trends("heads")) == {"heads_0", "heads_1"}


def test_collected_values_can_be_weighted(model):
    for factor, size in ((1, 3), (5, 1)):
        model(factor * X)
        model.collect("out", weight=size)
    model.flush()
    assert model.latest_metrics() == {"out": 60.0}


def test_integers_and_bools_can_be_collected():
    model = FlowBuilder(lambda x: x > 2).tag("large").build()
    model(X)
    model.collect("large")
    model.flush()
    assert model.latest_metrics() == {"large": 0.5}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda m: m.collect("out"),
            MetricError,
            "the tag 'out' has no value yet. Call the model before collect('out').",
        ),
        (
            lambda m: m.collect("out", reduce="median"),
            MetricError,
            "reduce='median'. Use one of 'mean', 'sum', 'max', 'min', 'norm'.",
        ),
        (lambda m: m.collect("nothing"), PathError, "'nothing' is neither a subgraph nor a tag."),
        (lambda m: m.flush("nothing"), MetricError, "no metric 'nothing' was recorded."),
        (lambda m: m.trends("nothing.*"), PathError, "no metric matches 'nothing.*'."),
        (lambda m: m.export_trends("x.csv"), MetricError, "there is nothing to export"),
        (
            lambda m: (m.record("loss", 1.0), m.export_trends("x.csv", ["los"])),
            MetricError,
            "no metric 'los' was recorded. Did you mean 'loss'?",
        ),
    ],
)
def test_values_that_cannot_be_read_are_rejected(model, call, error, message):
    with pytest.raises(error) as caught:
        call(model)
    assert str(caught.value).startswith(message)


def test_a_rejected_collect_records_nothing(model):
    model(X)
    with pytest.raises(PathError):
        model.collect("out", "nothing")
    model.flush()
    assert model.latest_metrics() == {}


def test_recording_collecting_and_closing_never_read_a_value_on_the_host(model):
    model(X)
    loss = torch.tensor(2.0)
    with NoHostReads():
        for _ in range(3):
            model.record("loss", loss)
            model.record("encoder.loss", loss)
            model.collect("heads", "out", "encoder.scan.hidden")
            model.end_step()
        model.flush("loss")
        model.end_epoch()
    assert model.latest_metrics()["loss"] == 2.0


def test_recording_keeps_no_autograd_history(model):
    weight = torch.ones(1, requires_grad=True)
    model.record("loss", (weight * 3).sum())
    model.end_epoch()
    assert model.trend("loss").latest == 3.0


def test_epochs_and_steps_are_counted(model):
    for _ in range(2):
        for _ in range(3):
            model.record("loss", 1.0)
            model.end_step()
        model.end_epoch()
    assert (model.epoch_count, model.step_count) == (2, 6)


def test_history_is_keyed_by_epoch_with_gaps(model):
    for epoch in range(4):
        model.record("loss", float(epoch))
        if epoch in (1, 3):
            model.record("encoder.scan.accuracy", 10.0 * epoch)
        model.end_epoch()
    assert model.trend("encoder.scan.accuracy").epochs == [1, 3]
    assert model.trend("loss").epochs == [0, 1, 2, 3]


def test_parents_and_children_share_the_epoch_number_even_if_only_flushed(model):
    model.record("encoder.loss", 1.0)
    model.flush()
    model.record("encoder.loss", 2.0)
    model.record("loss", 3.0)
    model.flush()
    assert model.trend("encoder.loss").epochs == [0, 1]
    assert model.trend("loss").epochs == [1]


def test_trends_are_found_by_name_pattern_and_group(model):
    for epoch in range(3):
        model.record("loss", 3.0 - epoch)
        model.record("encoder.loss", 6.0 - 2 * epoch)
        model.end_epoch()
    assert set(model.trends()) == {"loss", "encoder.loss"}
    assert set(model.trends("*.loss")) == {"encoder.loss"}
    assert model.trends("**").all_improving(3)
    assert model.trends("**").mean_slope(3) == pytest.approx(-1.5)


def test_the_eta_follows_the_epochs(model):
    assert math.isnan(model.eta(10))
    model.record("loss", 1.0)
    model.end_epoch()
    assert model.eta(10) > 0.0
    assert model.eta(1) == 0.0


def test_exports_contain_dotted_names(model, tmp_path):
    for epoch in range(2):
        model.record("loss", 1.0 + epoch)
        model.record("encoder.scan.loss", 3.0)
        model.end_epoch()
    table = model.export_trends(tmp_path / "t.csv")
    assert list(csv.reader(table.read_text().splitlines())) == [
        ["epoch", "loss", "encoder.scan.loss"],
        ["1", "1.00000000", "3.00000000"],
        ["2", "2.00000000", "3.00000000"],
    ]
    lines = model.write_log(tmp_path / "t.log", 5, ["loss"]).read_text().splitlines()
    assert lines[0] == "# flodl training log"
    assert lines[1].startswith("epoch   1  loss=1.0000  [")
    page = model.plot_html(tmp_path / "t.html", ["encoder.**"]).read_text()
    assert "encoder.scan.loss" in page


def test_end_step_detaches_carried_values(model):
    model(X)
    assert model.tagged("out") is not None
    model.end_step()
    assert not model.tagged("out").requires_grad


def test_a_trend_of_a_metric_before_anything_is_recorded_is_empty(model):
    assert not model.trend("loss")
    assert not model.trend("loss").latest < 0.1
    assert model.trends("heads").names == ["heads_0", "heads_1"]


@pytest.mark.parametrize(
    ("read", "unknown", "hint"),
    [
        (lambda m: m.trend("train_loss"), "train_loss", "Did you mean 'loss'?"),
        (lambda m: m.trend("encoder.los"), "encoder.los", "Did you mean 'encoder.loss'?"),
        (lambda m: m.trends("loss", "val_loss"), "val_loss", "Did you mean 'loss'?"),
        (lambda m: m.trends("heads"), "heads_0", "The metrics here are 'loss', 'encoder.loss'."),
        (lambda m: m.flush("loss", "lost"), "lost", "Did you mean 'loss'?"),
        (lambda m: m.plot_html("x.html", ["los"]), "los", "Did you mean 'loss'?"),
        (lambda m: m.export_trends("x.csv", ["accuracy"]), "accuracy", "The metrics here are"),
        (lambda m: m.write_log("x.log", 3, ["train_loss"]), "train_loss", "Did you mean 'loss'?"),
    ],
)
def test_an_unknown_metric_name_raises_with_a_suggestion(model, read, unknown, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.record("loss", 1.0)
    model.record("encoder.loss", 1.0)
    with pytest.raises(MetricError) as caught:
        read(model)
    assert str(caught.value).startswith(f"no metric {unknown!r} was recorded. {hint}")
    assert not list(tmp_path.iterdir())
    assert model.trend("loss").values == []  # a flush that raised has flushed nothing


def test_the_tag_groups_of_a_subgraph_are_collected_and_read_by_their_path():
    inner = FlowBuilder().split([Double(), Triple()]).tag_group("head").merge("add").label("inner").build()
    model = FlowBuilder(inner).build()
    model(torch.ones(2, 2))
    model.collect("inner.head")
    model.end_epoch()
    assert model.trends("inner.head").names == ["inner.head_0", "inner.head_1"]
    assert [trend.latest for trend in model.trends("inner.head").values()] == [2.0, 3.0]


def test_a_metric_whose_name_looks_like_a_pattern_is_read_by_its_name(model):
    model.record("loss[a]", 1.0)
    model.end_epoch()
    assert model.trends("loss[a]")["loss[a]"].latest == 1.0


def test_two_reductions_of_a_tag_are_not_averaged(model):
    model(X)
    model.collect("out", reduce="max")
    with pytest.raises(MetricError, match=r"'out' has values from collect\(…, reduce='max'\), and now from "):
        model.collect("out", reduce="min")
    model.collect("out", reduce="max")
    model.end_epoch()
    assert model.latest_metrics() == {"out": 60.0}


@pytest.mark.parametrize("first", ["record", "collect"])
def test_recorded_and_collected_values_of_one_name_are_not_averaged(model, first):
    model(X)
    calls = {"record": lambda: model.record("out", 1.0), "collect": lambda: model.collect("out")}
    calls.pop(first)()
    with pytest.raises(
        MetricError, match=r"the metric 'out' has values from .* and now from .* different name"
    ):
        next(iter(calls.values()))()


def test_a_graph_and_its_subgraph_end_an_epoch_once(model):
    encoder = model.subgraph("encoder")
    for order in ((model, encoder), (encoder, model)):
        model.record("loss", 1.0)
        model.record("encoder.penalty", 2.0)
        for graph in order:
            graph.end_epoch()
    assert (model.epoch_count, encoder.epoch_count) == (2, 2)
    assert model.trend("loss").epochs == encoder.trend("penalty").epochs == [0, 1]


def test_an_empty_trend_with_recorded_values_is_explained_once(model, capsys):
    model.record("loss", 1.0)
    assert not model.trend("loss")
    assert not model.trend("loss")
    assert capsys.readouterr().err.count("note: the trend 'loss' is empty, because no epoch has ended") == 1
    model.end_epoch()
    model.record("other", 1.0)
    assert model.trend("loss").latest == 1.0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.collect(), r"collect\(\) names no tag. .* collect\('heads_0'\)"),
        (lambda m: m.record("encoder.*", 1.0), "the metric 'encoder.*' is a pattern"),
        (
            lambda m: m.trends(["loss"]),
            "the name of a metric must be a string, got list. Pass several names one by one",
        ),
        (lambda m: m.eta("3"), "eta got total_epochs='3'"),
        (lambda m: m.write_log("run.log", ["loss"]), "the log got total_epochs="),
    ],
)
def test_a_wrong_call_says_what_to_do(model, call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.record("loss", 1.0)
    model.end_epoch()
    with pytest.raises(MetricError, match=words):
        call(model)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model: model.record("a", 1.0, 32),
            r"record got str, float, int by position.*weight=len\(x\)",
        ),
        (lambda model: model.record("a"), "record needs 'value'. Write graph.record"),
        (lambda model: model.eta(), r"eta needs 'total_epochs'. Write graph.eta\(total_epochs\)"),
    ],
)
def test_a_wrong_call_is_an_error_with_the_right_one(model, call, message):
    with pytest.raises(MetricError, match=message):
        call(model)


def test_flush_local_leaves_the_metrics_of_subgraphs_open():
    inner = FlowBuilder(nn.Linear(2, 2)).label("inner").build()
    model = FlowBuilder(inner).build()
    model.record("loss", 1.0)
    model.record("inner.loss", 2.0)
    model.flush_local()
    assert model.latest_metrics() == {"loss": 1.0}
    with pytest.raises(MetricError, match="belongs to a subgraph"):
        model.flush_local("inner.loss")
    model.flush()
    assert model.latest_metrics() == {"loss": 1.0, "inner.loss": 2.0}


def test_reset_trend_deletes_the_history_and_keeps_the_counts():
    inner = FlowBuilder(nn.Linear(2, 2)).label("inner").build()
    model = FlowBuilder(inner).build()
    for _ in range(2):
        for name in ("loss", "accuracy", "inner.loss"):
            model.record(name, 1.0)
        model.end_epoch()
    model.reset_trend("inner.*", "accuracy")
    assert model.latest_metrics() == {"loss": 1.0}
    assert model.epoch_count == 2
    model.reset_trend()
    assert model.latest_metrics() == {}
    model.record("loss", 3.0)
    model.end_epoch()
    assert [*model.trend("loss").epochs] == [2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda graph: graph.end_epoch(3),
            r"end_epoch got int, .* Write graph.end_epoch\(\); the graph counts",
        ),
        (lambda graph: graph.end_step(3), "end_step got int"),
        (lambda graph: graph.export_trends(), r"needs 'path'. Write graph.export_trends\('trends.csv'\)"),
        (lambda graph: graph.write_log("run.log", epochs=3), "has no argument 'epochs'. Write total_epochs="),
        (lambda graph: graph.export_trends("trends.csv", 3), "the names of metrics are 3"),
        (lambda graph: graph.timing_trend(), "timing_trend needs 'tag'"),
    ],
)
def test_wrong_arguments_of_metric_methods_raise_with_the_right_call(call, message):
    with pytest.raises(MetricError, match=message):
        call(FlowBuilder(nn.Linear(2, 2)).build())
