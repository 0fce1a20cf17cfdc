"""The timeline as a picture: lanes, syncs, losses and joins, with text from a run escaped."""

from xml.etree import ElementTree

import pytest

from flodl.monitor.ranks import RankHistory, timeline_html, timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def history(**changes):
    found = RankHistory()
    rows = [
        {
            "rank": rank,
            "device": "cuda:0",
            "host": "node",
            "state": "finished",
            "joined_s": 10.0,
            "since_s": 20.0,
        }
        for rank in range(2)
    ]
    rows[0] |= {"train_s": 8.0, "wait_s": 2.0, "samples": 80, "num_bytes": 2048}
    rows[1] |= {"train_s": 4.0, "reduce_s": 1.0, "samples": 20, "ended_s": 15.0, **changes}
    found.add(
        {
            "start_s": 10.0,
            "time_s": 20.0,
            "number": 0,
            "policy": "cadence",
            "totals": {"syncs": 2, "samples": 100, "divergence": 0.25},
            "ranks": rows,
            "slices": {
                "0": [[10.0, 18.0, 8.0, 0.0, 0.0], [18.0, 20.0, 0.0, 0.0, 2.0]],
                "1": [[10.0, 14.0, 4.0, 0.0, 0.0], [14.0, 15.0, 0.0, 1.0, 0.0]],
            },
            "pace": {"0": [[10.0, 4], [18.0, 8]], "1": [[10.0, 2]]},
            "syncs": [[12.0, 1], [18.0, 1]],
        }
    )
    return found.to_dict()


def by_class(text, name):
    return [node for node in ElementTree.fromstring(text).iter() if node.get("class") == name]


def texts(text):
    return ["".join(node.itertext()) for node in ElementTree.fromstring(text).iter(f"{SVG}text")]


def test_each_rank_has_a_lane_with_its_activities():
    picture = timeline_svg(history())
    assert {"rank 0", "rank 1", "2 syncs", "computing", "reducing", "waiting"} <= set(texts(picture))
    # One in the legend, and one for each lane that has it.
    assert [len(by_class(picture, name)) for name in ("compute", "reduce", "wait")] == [3, 2, 2]
    assert by_class(picture, "sync")[1].get("d").count("M") == 2


def test_losses_and_later_joins_are_marked():
    picture = timeline_svg(history(lost="its process ended", joined_s=13.0))
    (lost,) = by_class(picture, "lost")
    assert "".join(lost.itertext()) == "lost: its process ended"
    assert len(by_class(picture, "joined")) == 1
    assert by_class(timeline_svg(history()), "joined") == by_class(timeline_svg(history()), "lost") == []


def test_text_from_a_run_is_escaped():
    found = history(device="<script>", lost="</title><b>")
    assert "<script>" not in timeline_svg(found)
    assert "<script>" not in timeline_html(found, title="<script>")
    ElementTree.fromstring(timeline_svg(found))


def test_the_page_has_the_numbers_of_the_run_and_of_each_rank():
    page = timeline_html(history())
    for text in ("cadence", "0.25", "80.0%", "20.0%", "2.0 KB", "10"):
        assert f">{text}<" in page
    assert "<script" not in page


def test_a_long_run_is_a_small_picture():
    found = history()
    found["slices"]["0"] = [[10.0 + index, 11.0 + index, 1.0, 0.0, 0.0] for index in range(20_000)]
    found["syncs"] = [[10.0 + index, 1] for index in range(20_000)]
    assert len(timeline_svg(found)) < 100_000


@pytest.mark.parametrize("span_s", [0.0, 0.004, 0.5, 7.0, 90.0, 4000.0, 1e6, 1e8])
def test_the_axis_has_a_few_ticks_at_any_length(span_s):
    found = history()
    found["slices"] = {"0": [[10.0, 10.0 + span_s, span_s, 0.0, 0.0]]}
    ticks = len(by_class(timeline_svg(found), "line"))
    assert 1 <= ticks <= 9
