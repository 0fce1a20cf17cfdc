"""The SVG is well formed, safe, reproducible, and readable in light and dark mode."""

import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.core import PictureError
from flodl.graph.picture import place, sketch
from flodl.graph.picture.label import box_size, text_width

from ..drawn import everything, tree

NAMES = {"svg": "http://www.w3.org/2000/svg"}


class Wild(nn.Module):
    """A module whose repr has every character that XML has to escape."""

    def extra_repr(self) -> str:
        return '<b a="1"> & \' \x00\x1b[1m \ud800'

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iterfind(".//svg:text", NAMES)]


def tooltips(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iterfind(".//svg:g/svg:title", NAMES)]


def test_the_picture_is_xml_with_a_size_a_title_and_a_description():
    root = parse(everything().svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert root.get("role") == "img"
    assert root.findtext("svg:title", namespaces=NAMES) == "everything"
    assert "parameters" in (root.findtext("svg:desc", namespaces=NAMES) or "")
    assert root.find(".//svg:script", NAMES) is None


def test_every_box_and_cluster_has_a_frame_and_a_tooltip_with_its_path():
    model = tree()
    drawing = sketch(model)
    tips = {
        tip.text.split("\n")[0]
        for tip in parse(model.svg()).iterfind(".//svg:g/svg:title", NAMES)
        if tip.text
    }
    assert tips == {item.path for item in [*drawing.boxes(), *drawing.clusters()]}


def test_the_text_of_a_node_is_in_its_box():
    shown = texts(parse(FlowBuilder(nn.Linear(4, 8)).tag("entry").build().svg()))
    assert {"Linear4 → 8", "#entry", "40 params"} <= set(shown)


def test_tooltips_and_titles_are_escaped():
    def strange(x: torch.Tensor) -> torch.Tensor:
        return x

    strange.__name__ = 'f<"&>'
    root = parse(FlowBuilder(Wild()).through(strange).build().svg())
    tips = [tip.text or "" for tip in root.iterfind(".//svg:g/svg:title", NAMES)]
    assert any('<b a="1"> & \'' in tip for tip in tips)
    assert 'f<"&' in texts(root)


def test_the_same_graph_produces_the_same_text():
    first, second = everything(), everything()
    assert first.svg() == second.svg()
    assert first.svg() == first.svg()


def test_no_memory_address_is_shown():
    class Called:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    text = FlowBuilder(lambda x: x).through(Called()).build().svg()
    assert "0x" not in text
    assert "Called" in text


def test_light_colors_are_attributes_and_dark_ones_a_media_query():
    root = parse(everything().svg())
    style = root.findtext("svg:style", namespaces=NAMES) or ""
    assert style.startswith("@media (prefers-color-scheme: dark)")
    shapes = root.iterfind(".//svg:rect", NAMES)
    assert all((shape.get("fill") or "").startswith("#") for shape in shapes)
    classes = {name for element in root.iter() for name in (element.get("class") or "").split()}
    ruled = set(re.findall(r"\.(fl-[\w-]+)", style))
    assert classes <= ruled


def test_only_the_complete_file_is_left_in_the_folder(tmp_path):
    path = tmp_path / "pictures" / "model.svg"
    text = everything().svg(path)
    assert path.read_text(encoding="utf-8") == text
    assert [entry.name for entry in path.parent.iterdir()] == ["model.svg"]


def test_clusters_surround_what_is_inside_them():
    drawing = sketch(tree())
    layout = place(drawing)
    for cluster in drawing.clusters():
        outer = layout.clusters[cluster.path]
        for item in cluster.inside:
            inner = layout.boxes.get(item.path) or layout.clusters[item.path]
            assert outer.x <= inner.x
            assert outer.y <= inner.y
            assert inner.x + inner.width <= outer.x + outer.width
            assert inner.y + inner.height <= outer.y + outer.height


def test_no_two_boxes_overlap():
    layout = place(sketch(everything()))
    rects = list(layout.boxes.values())
    for position, one in enumerate(rects):
        for other in rects[position + 1 :]:
            apart = one.x + one.width <= other.x or other.x + other.width <= one.x
            assert apart or one.y + one.height <= other.y or other.y + other.height <= one.y


def test_a_long_chain_runs_from_top_to_bottom():
    builder = FlowBuilder(nn.Linear(4, 4))
    for _ in range(59):
        builder = builder.through(nn.Linear(4, 4))
    layout = place(sketch(builder.build()))
    tops = [rect.y for rect in layout.boxes.values()]
    assert tops == sorted(tops)
    assert len({round(rect.x, 3) for path, rect in layout.boxes.items() if path.startswith("linear")}) == 1


def test_a_box_is_wider_than_its_text():
    drawing = sketch(FlowBuilder(nn.Linear(1234, 5678)).tag("a_rather_long_name").build())
    box = next(box for box in drawing.boxes() if box.tags)
    assert box_size(box).width > text_width("#a_rather_long_name", "tag")


def test_the_heat_map_shows_times_a_scale_and_what_did_not_run():
    model = everything().eval()
    model.profile(torch.ones(2, 4), ctx=torch.ones(2, 8), repeats=1)
    text = model.svg_with_profile()
    shown = texts(parse(text))
    assert any("Forward: " in line and "on cpu" in line for line in shown)
    assert "0 µs" in shown
    assert "not run" in shown
    assert "fl-heat-10" in text


def test_the_pictures_in_the_docs_match_the_example():
    root = Path(__file__).parents[3]
    model = runpy.run_path(str(root / "examples" / "pictures.py"))["build"]()
    drawn = parse(model.svg())
    for name in ("pictures-model.svg", "pictures-heat.svg"):
        kept = parse((root / "docs" / "images" / name).read_text(encoding="utf-8"))
        assert tooltips(kept) == tooltips(drawn)
        assert "Linear16 → 64" in texts(kept)


def test_a_heat_map_without_a_profile_says_what_to_do():
    model = FlowBuilder(nn.Linear(2, 2)).build()
    with pytest.raises(PictureError, match=r"has no times to show. Call model.profile\(x\) first"):
        model.svg_with_profile()
    assert "Forward:" in model.svg_with_profile(example=torch.ones(1, 2))
    assert "Forward:" in model.svg_with_profile()


def test_a_bitmap_suffix_is_rejected(tmp_path):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    with pytest.raises(PictureError, match="asks for PNG, but the picture is an SVG"):
        model.svg(tmp_path / "model.png")
    assert not list(tmp_path.iterdir())


def test_a_picture_is_written_to_the_home_folder_for_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    FlowBuilder(nn.Linear(4, 8)).build().svg("~/runs/model.svg")
    assert (tmp_path / "runs/model.svg").read_text().startswith("<svg")
