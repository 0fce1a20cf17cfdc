"""Tables and logs: gaps, quoting, formulas, numbers that are not finite, atomic files."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.core.errors import MetricError
from flodl.observe import export_csv, plot_html, to_csv, to_log, write_log

EVIL = "</script><script>alert(1)</script>"


def test_the_table_has_epochs_from_one_and_blanks_for_gaps() -> None:
    table = to_csv({"loss": {0: 0.5, 2: 0.25}, "acc": {1: 0.125}})
    assert table == "epoch,loss,acc\n1,0.50000000,\n2,,0.12500000\n3,0.25000000,\n"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (0.0, "0.00000000"),
        (-1.5, "-1.50000000"),
        (1e-5, "0.00001000"),
        (1.25e-9, "1.25000000e-09"),
        (1e300, "1.00000000e+300"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_keep_their_digits(value: float, cell: str) -> None:
    assert to_csv({"m": {0: value}}) == f"epoch,m\n1,{cell}\n"


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@sum", "\tx", "\rx", " =1", "＝1"])
def test_names_that_would_run_as_formulas_become_text(name: str) -> None:
    header = next(csv.reader(io.StringIO(to_csv({name: {0: 1.0}}), newline="")))
    assert header == ["epoch", f"'{name}"]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=4, unique=True))
def test_any_name_survives_the_table(names: list[str]) -> None:
    table = to_csv({name: {0: 1.0} for name in names})
    rows = list(csv.reader(io.StringIO(table, newline="")))
    assert [cell.removeprefix("'") for cell in rows[0][1:]] == [name.removeprefix("'") for name in names]
    assert len(rows) == 2


def test_the_log_has_a_line_for_each_epoch_with_time_and_estimate() -> None:
    log = to_log({"loss": {0: 0.5, 1: 0.0001, 2: 123.456}, "acc": {1: 0.9}}, {0: 2.0, 1: 4.0, 2: 90.0}, 4)
    assert log.splitlines() == [
        "# flodl training log",
        "epoch   1  loss=0.5000  [2s  ETA 6s]",
        "epoch   2  loss=1.00e-04  acc=0.9000  [4s  ETA 6s]",
        "epoch   3  loss=123.46  [1m 30s  ETA 4s]",
    ]


def test_the_log_omits_unknown_values() -> None:
    log = to_log({"loss": {0: math.nan, 9: math.inf}}, {9: 1.0}, 10)
    assert log.splitlines()[1:] == ["epoch   1  loss=nan", "epoch  10  loss=inf  [1s]"]
    assert to_log({"loss": {0: 1.0}}, {0: 0.5}).splitlines()[1] == "epoch   1  loss=1.0000  [500ms]"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("encoder.loss", "encoder.loss"),
        ("größe", "größe"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "x"', r'"say \"x\""'),
        ("line\nbreak", r'"line\nbreak"'),
        ("\u2028\x1b[31m", r'"\u2028\u001b[31m"'),
        (EVIL, EVIL),
    ],
)
def test_names_in_the_log_stay_on_their_line(name: str, word: str) -> None:
    lines = to_log({name: {0: 1.0}}, {}).split("\n")
    assert lines[1:] == [f"epoch   1  {word}=1.0000", ""]


@pytest.mark.parametrize("histories", [{}, {"loss": {}}])
def test_nothing_to_export_is_an_error_that_says_what_to_do(histories, tmp_path: Path) -> None:
    writers = [
        lambda: export_csv(tmp_path / "t.csv", histories),
        lambda: write_log(tmp_path / "t.log", histories, {}),
        lambda: plot_html(tmp_path / "t.html", histories),
    ]
    for write in writers:
        with pytest.raises(MetricError, match=r"nothing to export: .* Call record\(name, value\)"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_with_their_folders(tmp_path: Path) -> None:
    histories = {"loss": {0: 0.5}, "half \ud800": {0: 1.0}}
    table = export_csv(tmp_path / "runs" / "t.csv", histories)
    log = write_log(tmp_path / "runs" / "t.log", histories, {0: 1.0}, 2)
    picture = plot_html(tmp_path / "runs" / "t.html", histories, title="a < b")
    assert table.read_text("utf-8").startswith("epoch,loss,half \\ud800\n1,")
    assert log.read_text("utf-8").endswith("[1s  ETA 1s]\n")
    assert "<title>a &lt; b</title>" in picture.read_text("utf-8")
    assert sorted(path.name for path in table.parent.iterdir()) == ["t.csv", "t.html", "t.log"]


@pytest.mark.parametrize(
    ("write", "name", "suffix"),
    [(plot_html, "p.png", ".html"), (plot_html, "p.csv", ".html"), (export_csv, "x.json", ".csv")],
)
def test_the_suffix_of_another_format_is_rejected(write, name, suffix, tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=rf"is written. Use the suffix \{suffix}"):
        write(tmp_path / name, {"loss": {0: 1.0}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("histories", [None, 3, "loss", [("loss", {0: 1.0})], {"loss": 1}, {"loss": [0.5]}])
def test_histories_that_are_not_maps_are_an_error(histories, tmp_path):
    for write in (
        lambda: to_csv(histories),
        lambda: to_log(histories, {}),
        lambda: plot_html(tmp_path / "a.html", histories),
        lambda: export_csv(tmp_path / "a.csv", histories),
    ):
        with pytest.raises(MetricError, match="Pass the values of each metric by epoch"):
            write()
    assert list(tmp_path.iterdir()) == []
