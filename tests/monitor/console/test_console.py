"""The console: epoch lines, time estimates, verbosity, and plain lines without a terminal."""

import io

import pytest

from flodl.core.log import Verbosity, set_verbosity, verbosity
from flodl.monitor.console import Console
from flodl.monitor.events import Event


@pytest.fixture(autouse=True)
def _normal_verbosity():
    before = verbosity()
    set_verbosity("normal")
    yield
    set_verbosity(before)


def output(*events, total_epochs=3, **options):
    stream = io.StringIO()
    console = Console(total_epochs, stream=stream, **options)
    for event in events:
        console(event)
    return stream.getvalue()


def epoch(number, *, duration_s=2.0, rank=0, **metrics):
    return Event("epoch", {"epoch": number, "metrics": metrics, "duration_s": duration_s}, rank=rank)


def progress(number, step, *, time_s, num_steps=100):
    return Event("progress", {"epoch": number, "step": step, "num_steps": num_steps}, time_s=time_s)


def test_an_epoch_is_one_line_and_the_last_one_has_no_estimate():
    assert output(epoch(0, loss=0.5), epoch(2, loss=0.25)) == (
        "  epoch 1/3  loss=0.5000  [2s  ETA 4s]\n  epoch 3/3  loss=0.2500  [2s]\n"
    )


def test_gpu_memory_is_shown_with_its_limit_and_the_utilization():
    gpu = {"device": 0, "vram_used_bytes": 3 * 2**30, "vram_total_bytes": 2**34, "util_pct": 81.6}
    text = output(Event("resources", {"gpus": [gpu]}), epoch(0, loss=0.5))
    assert text.endswith("VRAM: 3.0 GB / 16.0 GB (82%)\n")


def test_the_first_estimate_after_a_resume_covers_only_the_remaining_epochs():
    assert "ETA 40s" in output(epoch(79, loss=1.0), total_epochs=100)
    old = dict.fromkeys(range(79), 10.0)
    assert "ETA 3m 20s" in output(epoch(79, loss=1.0), total_epochs=100, durations=old)


def test_the_first_estimate_of_a_run_that_replaces_another_does_not_use_its_epochs():
    old = dict.fromkeys(range(3), 1000.0)
    assert "ETA 4s" in output(epoch(0, loss=1.0), total_epochs=3, durations=old)
    steps = [progress(0, step, time_s=float(step)) for step in range(1, 101)]
    assert output(*steps, every_s=30.0, durations=old).splitlines()[0].endswith("ETA 4m 29s")


def test_the_estimate_of_the_event_is_used():
    event = Event("epoch", {"epoch": 0, "metrics": {}, "duration_s": 2.0, "eta_s": 99.0})
    assert output(event) == "  epoch 1/3  [2s  ETA 1m 39s]\n"


def test_without_a_terminal_progress_is_printed_once_per_interval():
    steps = [progress(0, step, time_s=float(step)) for step in range(1, 101)]
    text = output(*steps, every_s=30.0)
    assert "\r" not in text
    assert "\x1b" not in text
    lines = text.splitlines()
    assert [line.split("  ")[2] for line in lines] == [
        "step 31/100 (31%)",
        "step 61/100 (61%)",
        "step 91/100 (91%)",
    ]
    assert lines[0].endswith("ETA 4m 29s")


def test_the_estimate_in_a_resumed_epoch_uses_only_the_observed_part():
    steps = [progress(1, step, time_s=float(step)) for step in (60, 70, 95)]
    assert output(*steps, every_s=30.0) == "  epoch 2/3  step 95/100 (95%)  ETA 1m 45s\n"


def test_short_epochs_have_no_progress_lines():
    steps = [progress(0, step, time_s=step / 10) for step in range(1, 101)]
    assert output(*steps) == ""


def test_an_epoch_of_unknown_length_shows_only_its_step():
    events = [progress(0, step, time_s=float(step), num_steps=None) for step in (1, 40)]
    assert output(*events) == "  epoch 1/3  step 40\n"


def test_step_metrics_are_part_of_progress_lines():
    metrics = Event("metrics", {"epoch": 0, "step": 9, "metrics": {"loss": 0.125}}, time_s=5.0)
    text = output(progress(0, 1, time_s=0.0), metrics, progress(0, 50, time_s=31.0))
    assert "loss=0.1250" in text


def test_a_run_ends_with_a_summary():
    start = Event("run_start", {"name": "digits", "total_epochs": 1}, time_s=100.0)
    end = Event("run_end", {"status": "finished"}, time_s=190.0)
    text = output(start, epoch(0, loss=0.5, accuracy=0.9), end)
    assert text.endswith("  training complete in 1m 30s  | loss: 0.5000  accuracy: 0.9000\n")


def test_step_metrics_that_arrive_late_are_not_in_the_summary():
    late = Event("metrics", {"epoch": 0, "step": 9, "metrics": {"loss": 0.125}})
    end = Event("run_end", {"status": "finished", "duration_s": 5.0})
    assert output(epoch(0, loss=0.5), late, end).endswith("in 5s  | loss: 0.5000\n")
    assert output(late, end).endswith("in 5s  | loss: 0.1250\n")


@pytest.mark.parametrize(
    ("status", "words"),
    [("stopped", "training stopped after 5s"), ("failed", "training failed after 5s  ValueError: no")],
)
def test_an_early_end_is_reported(status, words):
    message = "ValueError: no" if status == "failed" else None
    event = Event("run_end", {"status": status, "duration_s": 5.0, "message": message})
    assert output(event) == f"  {words}\n"


def test_alerts_and_tiers_are_one_line_each():
    text = output(
        Event("alert", {"message": "loss is nan", "level": "error", "path": "head"}, rank=2),
        Event("tier", {"tier": "captured", "reason": "equal to eager"}),
    )
    assert text == "  error (rank 2): at 'head': loss is nan\n  tier captured: equal to eager\n"


def test_a_note_has_a_label_of_its_own_and_a_warning_that_the_log_has_printed_is_not_repeated():
    text = output(
        Event("note", {"message": "it counts as 6 samples", "about": "samples", "level": "info"}),
        Event(
            "note", {"message": "the loss combines [n, 1] and [n]", "about": "broadcast", "level": "warning"}
        ),
        Event("note", {"message": "hello"}),
    )
    assert text == "  samples: it counts as 6 samples\n  note: hello\n"


def test_the_reason_of_a_tier_is_printed_once():
    def tier(name, reason, **others):
        return Event("tier", {"tier": name, "reason": reason, **others})

    text = output(
        tier("eager", "training has just begun", what="eager"),
        tier("eager", "training has just begun", gain=1.0),
        tier("captured", "equal to eager", what="captured"),
        tier("captured", "equal to eager; it is compiled soon", gain=3.25),
        tier("captured", "a ragged last batch runs eagerly", what="eager"),
        tier("captured", "equal to eager; it is compiled soon", gain=3.3),
        tier("captured", "equal to eager; it is being compiled", gain=3.3),
        tier("compiled", "close to eager", what="compiled"),
        tier("compiled", "close to eager", gain=4.0),
        tier("eager", "a module changed", what="eager"),
    )
    assert text.splitlines() == [
        "  tier eager: training has just begun",
        "  tier captured: equal to eager",
        "  tier captured, 3.2× as fast as eager: it is compiled soon",
        "  tier captured: a ragged last batch runs eagerly",
        "  tier captured: it is being compiled",
        "  tier compiled: close to eager",
        "  tier compiled, 4.0× as fast as eager",
        "  tier eager: a module changed",
    ]


def test_of_other_ranks_only_alerts_are_shown():
    assert output(epoch(0, rank=1, loss=0.5)) == ""


def test_quiet_shows_errors_only():
    set_verbosity(Verbosity.QUIET)
    text = output(
        epoch(0, loss=0.5),
        Event("alert", {"message": "warm", "level": "warning"}),
        Event("alert", {"message": "burning", "level": "error"}),
    )
    assert text == "  error: burning\n"


def test_saves_are_shown_in_verbose_mode():
    save = Event("save", {"path": "run/best.fdl", "reason": "best loss"})
    assert output(save) == ""
    set_verbosity("verbose")
    assert output(save) == "  saved: run/best.fdl (best loss)\n"


def test_a_name_cannot_control_the_terminal():
    text = output(epoch(0, **{"loss\x1b[2J\r": 0.5}))
    assert "loss\\x1b[2J\\r=0.5000" in text
    assert "\x1b" not in text


def test_characters_that_the_stream_cannot_encode_are_escaped():
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    Console(1, stream=stream)(epoch(0, größe=0.5))
    assert buffer.getvalue() == b"  epoch 1/1  gr\\xf6\\xdfe=0.5000  [2s]\n"


def test_a_notebook_stream_without_isatty_gets_lines():
    class Stream:
        encoding = None
        text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    stream = Stream()
    Console(1, stream=stream)(epoch(0, loss=0.5))
    assert stream.text == "  epoch 1/1  loss=0.5000  [2s]\n"


def test_standard_output_is_looked_up_when_a_line_is_written(capsys):
    Console(1)(epoch(0, loss=0.5))
    assert capsys.readouterr().out == "  epoch 1/1  loss=0.5000  [2s]\n"


def step_metrics(step, epoch=0, **metrics):
    return Event("metrics", {"epoch": epoch, "step": step, "metrics": metrics})


def test_the_last_line_names_the_steps_of_values_from_different_steps():
    end = Event("run_end", {"status": "stopped", "duration_s": 5.0})
    one = step_metrics(8, loss=0.5, accuracy=0.9)
    assert output(one, end).endswith("after 5s  | loss: 0.5000  accuracy: 0.9000\n")
    assert output(one, step_metrics(9, loss=0.25), end).endswith(
        "after 5s  | step 9  loss: 0.2500  | step 8  accuracy: 0.9000\n"
    )
    both = step_metrics(9, loss=0.25), step_metrics(9, accuracy=0.8)
    assert output(one, *both, end).endswith("after 5s  | loss: 0.2500  accuracy: 0.8000\n")


@pytest.mark.parametrize("began", [progress(1, 3, time_s=1.0), step_metrics(103, epoch=1, loss=0.25)])
def test_the_last_line_names_the_epoch_if_a_later_one_was_not_completed(began):
    end = Event("run_end", {"status": "stopped", "duration_s": 5.0})
    assert output(epoch(0, loss=0.5), began, end).endswith("after 5s  | epoch 1  loss: 0.5000\n")
    late = step_metrics(99, loss=0.125)
    assert output(epoch(0, loss=0.5), late, end).endswith("after 5s  | loss: 0.5000\n")
