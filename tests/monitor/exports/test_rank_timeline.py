"""The timeline of ranks as a file."""

import pytest

from flodl.core import MonitorError
from flodl.monitor.exports import save_rank_timeline
from flodl.monitor.ranks import RankHistory


def test_only_pictures_and_pages_are_written(tmp_path):
    history = RankHistory()
    history.add({"start_s": 1.0, "number": 0, "ranks": [{"rank": 0}]})
    with pytest.raises(MonitorError, match=r"written as .svg or .html, got .*ranks.png"):
        save_rank_timeline(tmp_path / "ranks.png", history.to_dict())
    assert (
        save_rank_timeline(tmp_path / "new" / "ranks.svg", history.to_dict()).read_text().startswith("<svg")
    )
