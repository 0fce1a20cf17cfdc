"""Parsing YAML 1.2 with line numbers. Any content gives a document or an error that names the line."""

import json
import math
import os
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
        "b.d": 6,
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


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("9" * 5000, "'9+' is not a valid int: it does not fit in 64 bits. Put it in quotes"),
        ("0x" + "f" * 9000, "is not a valid int: it does not fit in 64 bits"),
        (str(2**64), "it does not fit in 64 bits"),
        (str(-(2**63) - 1), "it does not fit in 64 bits"),
        ("1e999", "'1e999' is not a valid float: it is too large"),
        ("-1e400", "it is too large"),
        ("1e-999", "'1e-999' is not a valid float: it is too close to zero"),
        ("9" * 400 + ".0", "it is too large"),
    ],
)
def test_a_number_out_of_range_is_an_error_instead_of_infinity_or_zero(value, message):
    for text in (f"a: 1\nb: {value}", f"a: 1\nb: [1, {value}]", f"a: 1\nb: {{c: {value}}}"):
        with pytest.raises(ManifestError, match=rf"fdl\.yml:2: .*{message}"):
            parse_document(text, FILE)


def test_the_largest_numbers_are_kept():
    text = f"a: {2**64 - 1}\nb: {-(2**63)}\nc: 1.7e308\nd: 5e-324\ne: .inf\nf: 0e-999\ng: 2024-01-01"
    values = [2**64 - 1, -(2**63), 1.7e308, 5e-324, float("inf"), 0.0, "2024-01-01"]
    assert list(plain(parse_document(text, FILE)).values()) == values


DEEP = {
    "brackets": "a: " + "[" * 30_000 + "]" * 30_000,
    "unclosed brackets": "a: " + "[" * 30_000,
    "braces": "a: " + "{a: " * 30_000 + "}" * 30_000,
    "dashes": "a:\n  " + "- " * 30_000 + "x",
    "questions": "? " * 30_000,
    "indentation": "\n".join(" " * depth + "a:" for depth in range(500)),
    "aliases": "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 500)),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_of_any_kind_is_an_error_with_its_line(text):
    with pytest.raises(ManifestError, match=r"fdl\.yml:\d+: the nesting is too deep for a manifest"):
        parse_document(text, FILE)


def test_nesting_up_to_the_limit_is_accepted():
    document = parse_document("a: " + "[" * 63 + "]" * 63, FILE)
    assert str(document.value("a")) == "[" * 63 + "]" * 63


def test_text_that_is_repeated_by_aliases_is_limited():
    text = "a: &a " + "x" * 10_000 + "\nb: [" + ", ".join(["*a"] * 1000) + "]"
    with pytest.raises(ManifestError, match=r"fdl\.yml:1: with its aliases, the text of the file has more"):
        parse_document(text, FILE)


def test_a_long_key_is_an_error_with_its_line():
    with pytest.raises(ManifestError, match=r"fdl\.yml:2: the key 'x+'… has more than 1000 characters"):
        parse_document('a: 1\n? "' + "x" * 5000 + '"\n: 1', FILE)


def test_a_file_that_is_too_large_is_an_error(tmp_path):
    with open(tmp_path / "fdl.yml", "wb") as file:
        file.truncate(1 << 33)  # a sparse file
    with pytest.raises(ManifestError, match=r"fdl\.yml cannot be read: it has more than 1048576 bytes"):
        read_document(tmp_path / "fdl.yml")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs device files")
def test_a_pipe_or_a_device_is_an_error_instead_of_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.yml")
    for path in (tmp_path / "pipe.yml", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ManifestError, match="cannot be read: it is not a regular file"):
            read_document(path)
