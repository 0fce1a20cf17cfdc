"""Rendering a document: YAML that parses back to itself, with the origin of every value."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from flodl.cli.manifest.document import leaves, plain
from flodl.cli.manifest.loader import load
from flodl.cli.manifest.parser import parse_document
from flodl.cli.manifest.render import as_yaml, flow, origins_of, scalar

from .documents import LISTS, SCALARS, maps, st, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("words", "words"),
        ("two words", "two words"),
        ("", '""'),
        ("a: b", '"a: b"'),
        ("#x", '"#x"'),
        ("-x", '"-x"'),
        (" x", '" x"'),
        ("true", '"true"'),
        ("No", '"No"'),
        ("~", '"~"'),
        ("12", '"12"'),
        ("1e-4", '"1e-4"'),
        ('say "x"', '"say \\"x\\""'),
        ("a\nb", '"a\\nb"'),
        ("a\tb", '"a\\tb"'),
        ("c:\\x", '"c:\\\\x"'),
        ("*.py", '"*.py"'),
        (True, "true"),
        (None, "null"),
        (1e-05, "1e-05"),
        (float("inf"), ".inf"),
        (3, "3"),
    ],
)
def test_strings_are_quoted_only_if_they_would_be_parsed_as_something_else(value, text):
    assert scalar(value) == text


DRAWN = st.one_of(SCALARS, LISTS, st.none())


@settings(deadline=None, max_examples=40)
@given(maps(DRAWN))
def test_rendered_yaml_parses_back_to_the_same_data(data):
    shown = as_yaml(table(data), Path())
    assert plain(parse_document(shown, Path("shown.yml"))) == data


@settings(deadline=None, max_examples=40)
@given(DRAWN)
def test_a_value_in_flow_style_parses_back_to_itself(value):
    assert parse_document(f"x: {flow(value)}", Path("x.yml")).value("x") == value


def test_the_layout_is_aligned_and_long_lists_are_broken():
    data = {
        "a": 1,
        "long-name": {"list": [1, 2], "wide": ["x" * 30] * 3, "maps": [{"k": 1, "l": [2]}], "empty": {}},
    }
    assert as_yaml(table(data), Path()) == (
        "a: 1            # fdl.yml:1\n"
        "long-name:\n"
        "  list: [1, 2]  # fdl.yml:1\n"
        "  wide:         # fdl.yml:1\n"
        f"    - {'x' * 30}\n" * 1 + f"    - {'x' * 30}\n" * 2 + "  maps:         # fdl.yml:1\n"
        "    - k: 1\n"
        "      l: [2]\n"
        "  empty: {}     # fdl.yml:1\n"
    )


def without_nulls(data):
    inner = {key: without_nulls(value) if isinstance(value, dict) else value for key, value in data.items()}
    return {key: value for key, value in inner.items() if value is not None}


def test_json_output_has_dotted_paths():
    found = origins_of(table({"a": {"b": [1]}, "x.y": 2}), Path())
    assert found == {
        "a.b": {"value": [1], "origin": "fdl.yml:1"},
        '"x.y"': {"value": 2, "origin": "fdl.yml:1"},
    }


@settings(deadline=None, max_examples=40)
@given(maps(DRAWN), maps(DRAWN), maps(DRAWN))
def test_every_origin_points_at_the_line_with_that_value(parent, base, over):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "base.yml").write_text(as_yaml(table(parent), Path()))
        (folder / "fdl.yml").write_text("inherit-from: base.yml\n" + as_yaml(table(base), Path()))
        (folder / "fdl.ci.yml").write_text(as_yaml(table(over), Path()))
        document = load(folder / "fdl.yml", overlay="ci").document
        shown = origins_of(document, folder)
        assert len(shown) == sum(1 for _ in leaves(document))
        for path, leaf in leaves(document):
            entry = shown[
                next(key for key in shown if re.sub('"', "", key) == re.sub('"', "", ".".join(path)))
            ]
            file, _, line = entry["origin"].rpartition(":")
            written = parse_document((folder / file).read_bytes(), folder / file)
            node = written.at(path)
            # Nulls in a map delete values of lower layers, possibly all that the map would contain.
            assert plain(node) == leaf.value or (leaf.value == {} and not without_nulls(plain(node)))
            assert node.origin.line == int(line)
            last = path[-1]
            head = (folder / file).read_text().split("\n")[int(line) - 1]
            assert scalar(last) in head or head.lstrip().startswith("- ") or leaf.value == {}
