"""The timeline: phases, idle gaps with causes, the verdict, and files."""

import csv
import gc
import io
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.monitor.events import Event
from flodl.monitor.timeline import Gap, Mark, Record, Sample, Timeline, idle_gaps, verdict
from flodl.monitor.timeline.phases import Phases
from flodl.monitor.timeline.record import merge_pairs
from flodl.monitor.timeline.tables import summary, to_csv


def record(*phases, util=None, marks=(), interval_s=0.1, num_steps=2, **fields):
    """Create a record with a sample for each dict of phases; `util` adds a GPU with its utilization."""
    samples = []
    for index, spent in enumerate(phases):
        gpus = () if util is None else ({"device": 0, "name": "H200", "util_pct": util[index]},)
        samples.append(Sample(index * interval_s, spent, num_steps, gpus=gpus, **fields))
    return Record(tuple(samples), tuple(marks))


class Clock:
    """A clock that is set by the test."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_waiting_for_data_most_of_the_time_is_data_bound():
    found = verdict(record(*[{"step": 0.04, "data": 0.06}] * 10))
    assert found.bound == "data-bound"
    assert str(found) == "data-bound: 60 % waiting for data, 40 % in steps (20 steps in 1s)"
    assert found.shares == pytest.approx({"step": 0.4, "data": 0.6})


def test_waiting_in_syncs_most_of_the_time_is_sync_bound():
    assert verdict(record(*[{"step": 0.04, "data": 0.01, "sync": 0.05}] * 10)).bound == "sync-bound"


def test_small_waits_are_compute_bound():
    assert verdict(record(*[{"step": 0.08, "data": 0.02}] * 10)).bound == "compute-bound"


def test_a_loop_with_a_small_share_of_the_time_is_reported():
    found = verdict(record(*[{"step": 0.023, "other": 0.077}] * 10))
    assert found.bound == "mostly outside the loop"
    assert str(found) == (
        "mostly outside the loop: 77 % elsewhere, 23 % in steps; name its parts with timeline.phase(name) "
        "(20 steps in 1s)"
    )
    named = verdict(record(*[{"step": 0.02, "evaluation": 0.08}] * 10))
    assert str(named) == "mostly outside the loop: 80 % in evaluation, 20 % in steps (20 steps in 1s)"


def test_a_busy_device_is_compute_bound_whatever_the_host_does():
    found = verdict(record(*[{"step": 0.01, "sync": 0.09}] * 10, util=[97.0] * 10))
    assert str(found) == "compute-bound: GPU 97 % busy, host 90 % in syncs, 10 % in steps (20 steps in 1s)"


def test_an_idle_device_without_waits_is_limited_by_the_host():
    found = verdict(record(*[{"step": 0.1}] * 10, util=[20.0] * 10))
    assert found.bound == "compute-bound"
    assert "the host is the limit" in str(found)


def test_an_unused_second_gpu_does_not_hide_a_busy_one():
    gpus = ({"device": 0, "util_pct": 99.0}, {"device": 1, "util_pct": 0.0})
    samples = tuple(Sample(index / 10, {"sync": 0.1, "step": 0.001}, 1, gpus=gpus) for index in range(5))
    assert verdict(Record(samples)).gpu_busy_pct == 99.0


def test_the_time_before_and_after_training_does_not_count():
    idle = [{"other": 0.1}] * 50
    found = verdict(record(*idle, *[{"step": 0.05, "data": 0.05}] * 10, *idle))
    assert found.shares == pytest.approx({"step": 0.5, "data": 0.5})


def test_with_too_few_samples_the_verdict_is_unknown_with_advice():
    found = verdict(record({"step": 0.1}))
    assert found.bound == "unknown"
    assert "timeline.step()" in str(found)
    assert verdict(Record(())).bound == "unknown"
    assert verdict(record(*[{"other": 0.1}] * 30, num_steps=0)).bound == "unknown"


@given(
    st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=3, max_size=30),
    st.none() | st.floats(0, 100),
)
def test_the_shares_of_a_verdict_add_up(parts, util):
    phases = [{"step": step + 0.001, "data": data, "sync": sync} for step, data, sync in parts]
    found = verdict(record(*phases, util=None if util is None else [util] * len(phases)))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert "\n" not in str(found)


def test_the_gap_of_the_reference_is_found():
    util = [2.0 if 5 <= index <= 14 else 90.0 for index in range(20)]
    (gap,) = idle_gaps(record(*[{"step": 0.1}] * 20, util=util))
    assert (gap.start_s, gap.end_s) == (0.5, 1.5)


def test_a_gap_at_the_end_is_closed_by_the_last_sample_and_a_missing_device_is_busy():
    trailing = record(*[{"step": 0.1}] * 6, util=[90.0, 90.0, 1.0, 1.0, 1.0, 1.0])
    assert [(gap.start_s, gap.end_s) for gap in idle_gaps(trailing)] == [(0.2, 0.5)]
    assert idle_gaps(trailing, device=7) == []
    assert idle_gaps(record(*[{"step": 0.1}] * 6)) == []


def test_short_gaps_are_ignored():
    util = [90.0, 1.0, 90.0, 1.0, 1.0, 90.0]
    assert len(idle_gaps(record(*[{"step": 0.1}] * 6, util=util), min_s=0.2)) == 1
    assert len(idle_gaps(record(*[{"step": 0.1}] * 6, util=util), min_s=0.1)) == 2


@pytest.mark.parametrize(
    ("spent", "cause"),
    [
        ({"data": 0.08, "step": 0.02}, "waiting for data (80 %)"),
        ({"sync": 0.1}, "waiting in a sync (100 %)"),
        ({"save": 0.04, "step": 0.06}, "saving (40 %)"),
        ({"augment": 0.1}, "augment (100 %)"),
        ({"data": 0.01, "step": 0.09}, "inside a step"),
        ({"other": 0.1}, "no phase was marked, and the host is idle"),
    ],
)
def test_the_cause_is_what_the_host_did_meanwhile(spent, cause):
    (gap,) = idle_gaps(record(*[spent] * 6, util=[0.0] * 6))
    assert gap.cause.startswith(cause)


def test_a_busy_host_without_phases_is_reported():
    (gap,) = idle_gaps(record(*[{"other": 0.1}] * 6, util=[0.0] * 6, process_cpu_pct=98.0))
    assert gap.cause == "the host is busy outside of any marked phase (process at 98 % of a core)"


def test_a_garbage_collection_that_fills_the_gap_is_its_cause():
    pause = Mark(0.0, "gc", 0.4)
    (gap,) = idle_gaps(record(*[{"step": 0.1}] * 6, util=[0.0] * 6, marks=[pause]))
    assert gap.cause == "garbage collection (80 %)"


def test_gaps_of_this_process_are_found_without_a_gpu():
    samples = tuple(Sample(index / 10, {"data": 0.1}, process_cpu_pct=1.0) for index in range(5))
    assert idle_gaps(Record(samples), "cpu") == [Gap(0.0, 0.4, "cpu", "waiting for data (100 %)")]


def test_at_any_time_exactly_one_phase_is_active():
    clock = Clock()
    phases = Phases(clock)
    clock.now_s = 1.0
    phases.enter("step")
    clock.now_s = 3.0
    phases.enter("sync")
    clock.now_s = 7.0
    assert phases.totals() == {"other": 1.0, "step": 2.0, "sync": 4.0}
    assert phases.leave("sync") == 4.0
    clock.now_s = 8.0
    assert phases.leave("step") == 7.0
    assert phases.totals() == {"other": 1.0, "step": 3.0, "sync": 4.0}


@given(st.lists(st.tuples(st.sampled_from(["step", "data"]), st.booleans(), st.floats(0, 10))))
def test_phases_add_up_to_the_elapsed_time(moves):
    clock = Clock()
    phases = Phases(clock)
    for name, is_start, seconds in moves:
        clock.now_s += seconds
        if is_start:
            phases.enter(name)
        else:
            assert phases.leave(name) >= 0.0  # also if it was never entered
    assert sum(phases.totals().values()) == pytest.approx(clock.now_s)


def until(condition):
    """Wait for a result of the sampling thread."""
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("the condition was not met within 20 s")


def test_batches_separates_waiting_from_working():
    def loader():
        for index in range(6):
            time.sleep(0.03)
            yield index

    with Timeline(interval_s=0.01) as timeline:
        seen = list(timeline.batches(loader()))
    assert seen == list(range(6))
    found = timeline.verdict()
    assert (found.bound, found.num_steps) == ("data-bound", 6)


def test_a_loop_that_is_left_early_ends_its_own_phase():
    timeline = Timeline()
    batches = timeline.batches(range(5))
    next(batches)
    with timeline.sync():
        batches.close()
    assert timeline._phases.leave("step") == 0.0
    assert timeline._num_steps == 1


def test_an_open_wait_is_visible_while_it_lasts():
    timeline = Timeline(interval_s=0.01).start()
    with timeline.data():
        until(lambda: any(sample.phases.get("data") for sample in timeline.record.samples))
    timeline.stop()


def test_a_long_phase_becomes_a_mark_and_steps_do_not():
    with Timeline(interval_s=0.01) as timeline:
        with timeline.phase("save"):
            time.sleep(0.02)
        with timeline.step():
            time.sleep(0.02)
    assert [mark.kind for mark in timeline.record.marks if mark.kind != "gc"] == ["save"]


def test_garbage_collections_are_marks_and_the_callback_is_removed():
    before = len(gc.callbacks)
    with Timeline() as timeline:
        timeline._on_gc("start", {"generation": 2})
        time.sleep(0.002)
        timeline._on_gc("stop", {"generation": 2})
        assert len(gc.callbacks) == before + 1
    assert len(gc.callbacks) == before
    # Other collections may happen meanwhile.
    assert "generation 2" in [mark.label for mark in timeline.record.marks]


def test_events_become_marks_except_frequent_ones():
    timeline = Timeline()
    for event in (
        Event("epoch", {"epoch": 3, "duration_s": 9.0}),
        Event("sync", {"duration_s": 0.5, "ranks": 4}),
        Event("metrics", {"step": 1, "metrics": {}}),
        Event("alert", {"message": "hot"}),
    ):
        timeline(event)
    marks = [(mark.kind, mark.label, mark.duration_s) for mark in timeline.record.marks]
    assert marks == [("epoch", "4", 0.0), ("sync", "4", 0.5), ("alert", "hot", 0.0)]


def test_the_record_is_bounded():
    timeline = Timeline(interval_s=0.001, max_samples=8).start()
    until(lambda: timeline.record.duration_s > 0.1)
    timeline.stop()
    assert len(timeline.record.samples) < 8
    for _ in range(10_005):
        timeline.mark("tick")
    assert (len(timeline.record.marks), timeline.record.num_dropped) == (10_000, 5)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9)), max_size=30))
def test_merging_samples_keeps_every_second_and_step(parts):
    samples = [Sample(float(at), {"step": seconds}, steps) for at, (seconds, steps) in enumerate(parts)]
    fewer = merge_pairs(samples)
    assert len(fewer) == (len(samples) + 1) // 2
    assert sum(s.num_steps for s in fewer) == sum(s.num_steps for s in samples)
    spent = [sum(s.phases.get("step", 0.0) for s in some) for some in (fewer, samples)]
    assert spent[0] == pytest.approx(spent[1])


def test_start_and_stop_are_idempotent_and_the_thread_ends():
    timeline = Timeline(interval_s=0.01)
    assert timeline.start() is timeline.start()
    timeline.stop()
    timeline.close()
    assert "flodl-timeline" not in [thread.name for thread in threading.enumerate()]
    assert timeline.record.samples  # the last sample is taken when it stops


@pytest.mark.parametrize(
    "options", [{"interval_s": 0.0}, {"interval_s": "a"}, {"max_samples": 1}, {"max_samples": "a"}]
)
def test_invalid_options_raise(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Timeline(**options)


def full_record():
    gpu = {"device": 0, "name": "H200", "util_pct": 50.0, "vram_used_bytes": 4, "vram_total_bytes": 8}
    samples = [
        Sample(index / 10, {"step": 0.07, "</script>": 0.03}, 3, cpu_pct=10.0, gpus=(gpu,))
        for index in range(4)
    ]
    return Record(tuple(samples), (Mark(0.1, "sync", 0.05, "4 ranks"),), started_s=1.0)


def test_a_record_can_be_restored_from_json(tmp_path):
    with Timeline(interval_s=0.01) as timeline:
        until(lambda: len(timeline.record.samples) > 2)
        timeline.mark("epoch", label="1")
    read = Record.from_dict(json.loads(timeline.save_json(tmp_path / "t.json").read_text()))
    assert read == timeline.record


def test_the_table_has_a_row_for_each_sample_and_safe_names(tmp_path):
    rows = list(csv.DictReader(io.StringIO(to_csv(full_record()))))
    assert len(rows) == 4
    assert rows[0]["gpu0_vram_total_bytes"] == "8"
    assert rows[0]["__script__s"] == "0.0300"
    with Timeline(interval_s=0.01) as timeline:
        pass
    assert timeline.save_csv(tmp_path / "t.csv").read_text().startswith("time_s,num_steps,")


def test_the_summary_counts_marks_and_idle_time():
    found = summary(full_record())
    assert found["marks"] == {"sync": {"count": 1, "total_s": 0.05}}
    assert found["gpus"] == {0: {"busy_pct": 50.0, "idle_pct": 0.0, "num_gaps": 0}}
    assert found["num_steps"] == 12
