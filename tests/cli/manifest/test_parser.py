"""Parsing YAML 1.2 with line numbers. Any content gives a document or an error that names the line."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flodl.cli.manifest.document import Leaf, leaves, plain
from flodl.cli.manifest.parser import parse_document, read_document
from flodl.core.errors import ManifestError

FILE = Path("fdl.yml")


def value(text):
    return parse_document(f"x: {text}", FILE).value("x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-0.5", -0.5),
        ("+1.5e+3", 1500.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("12", 12),
        ("-12", -12),
        ("+7", 7),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("NULL", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("0b1", "0b1"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!int '3'", 3),
        ("[1, yes, null]", [1, "yes", None]),
        ("[{a: 1}]", [{"a": 1}]),
        ("<<", "<<"),
        ("=", "="),
    ],
)
def test_scalars_follow_yaml_1_2(text, expected):
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_a_float():
    assert math.isnan(value(".nan"))


def test_every_value_knows_its_line():
    document = parse_document(
        "a: 1\n\n# words\nb:\n  c: x\n  d:\n    - 1\n    - 2\n  e: |\n    long\n    text\n", FILE
    )
    assert {".".join(path): leaf.origin.line for path, leaf in leaves(document)} == {
        "a": 1,
        "b.c": 5,
        "b.d": 7,
        "b.e": 9,
    }


def test_json_is_parsed_with_line_numbers_too(tmp_path):
    (tmp_path / "fdl.json").write_text(json.dumps({"a": {"b": [1, 2.5, None]}, "c": "x\ty"}, indent=2))
    document = read_document(tmp_path / "fdl.json")
    assert plain(document) == {"a": {"b": [1, 2.5, None]}, "c": "x\ty"}
    assert document.at(("c",)).origin.line == 9


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null"])
def test_an_empty_file_is_an_empty_map(text):
    assert plain(parse_document(text, FILE)) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", r"fdl\.yml:1: .*expected"),
        ("a: 1\nb: {", r"fdl\.yml:2: "),
        ("a:\n\t- 1", r"fdl\.yml:2: the line is indented with a tab\. Use spaces"),
        ("- 1", r"fdl\.yml:1: a manifest must be a map, not a list"),
        ("words", r"fdl\.yml:1: a manifest must be a map, not text"),
        ("a: 1\n---\nb: 2", r"fdl\.yml:\d: .*another document"),
        ("a: 1\nb: 2\na: 3", r"fdl\.yml:3: the key 'a' appears twice in one map"),
        ("[1]: 2", r"a key must be a scalar, not a map"),
        ("a: !python/name:os.system x", "is not supported"),
        ("a: !!binary aGk=", "is not supported"),
        ("a: !!int x", "'x' is not a valid int"),
        ("a: &x [*x]", "an alias refers to a node that contains it"),
        ("a: &x {b: *x}", "an alias refers to a node that contains it"),
        ("a: *nothing", "undefined alias"),
        ("a: " + "9" * 5000, "is not a valid int"),
        ("a: 1\nb: \x00", r"fdl\.yml:2: there is an invisible character"),
        ("a: 1\nb: \x01", r"fdl\.yml:2: there is an invisible character"),
        ('a: 1\nb: "x\\0y"', r"fdl\.yml:2: .* contains a NUL character"),
        ('a: 1\n"x\\0y": 1', r"fdl\.yml:2: .* contains a NUL character"),
        ("a: !!python/object/apply:os.getcwd []", "apply:os.getcwd' is not supported"),
        ("a: 1\nb: !!set {x, y}", r"fdl\.yml:2: the tag .* is not supported"),
        ("a: 1\nb: !foo {x: y}", r"fdl\.yml:2: the tag '!foo' is not supported"),
    ],
)
def test_a_syntax_error_names_the_line(text, message):
    with pytest.raises(ManifestError, match=message):
        parse_document(text, FILE)


def test_nested_aliases_are_limited():
    layers = ["a0: &a0 [1, 2]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ManifestError, match="more than 100000 values"):
        parse_document("\n".join(layers), FILE)


def test_the_line_of_an_alias_is_its_own_not_that_of_its_anchor():
    document = parse_document("a: &a {b: 1}\nc:\n  d: 2\n  <<: *a\ne: *a\n", FILE)
    assert document.table("c").entries["<<"].origin.line == 4
    assert document.table("e").origin.line == 5
    assert document.at(("e", "b")).origin.line == 1


def test_deep_nesting_is_an_error():
    with pytest.raises(ManifestError, match=r"fdl\.yml:2: the nesting is too deep"):
        parse_document("b: 1\na: " + "[" * 3000 + "]" * 3000, FILE)
    with pytest.raises(ManifestError):
        parse_document("a: " + "{a: " * 900 + "1" + "}" * 900, FILE)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "fdl.yml").mkdir()
    with pytest.raises(ManifestError, match=r"fdl\.yml cannot be read: Is a directory"):
        read_document(tmp_path / "fdl.yml")


def document_or_error(content):
    """Return the document, or None after an error that names the file. Fail for any other error."""
    try:
        return parse_document(content, FILE)
    except ManifestError as error:
        return None if str(error).startswith("fdl.yml") else pytest.fail(str(error))


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"\xff\xfe")
@example(b"a: \x80")
def test_any_bytes_give_a_document_or_an_error(content):
    document_or_error(content)


PIECES = ["a", "b", ":", ": ", "- ", "\n", "  ", "[", "]", "{", "}", ",", "&x ", "*x", "!t ", "|\n", ">"]
PIECES += ['"', "'", "#", "1", "~", "\t", "<<", "---\n", "? ", "%", "@"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_mixture_of_yaml_tokens_gives_a_document_or_an_error(text):
    document = document_or_error(text)
    assert document is None or all(isinstance(leaf, Leaf) for _, leaf in leaves(document))
