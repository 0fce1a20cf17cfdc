"""Dotted paths, patterns and suggestions."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.core import PathError, TagError
from flodl.core.paths import check_name, is_glob, matches, nearest, split, suggestion

segments = st.text("abc_1", min_size=1, max_size=3)
pieces = st.one_of(segments, st.sampled_from(["*", "**", "?", "a*", "*b", "a?c", "[ab]*", "[!a]"]))


def by_regex(pattern: str, path: str) -> bool:
    """The same rule, written as one regular expression over the path with a dot after each segment."""
    expression = ""
    for piece in pattern.split("."):
        if piece == "**":
            expression += r"(?:[^.]+\.)*"
            continue
        for part in re.findall(r"\[!?[^\]]+\]|.", piece):
            one = {"*": "[^.]*", "?": "[^.]"}.get(part, part.replace("[!", "[^") if len(part) > 1 else part)
            expression += one
        expression += r"\."
    return re.fullmatch(expression, path + ".") is not None


@settings(derandomize=True, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=4), st.lists(segments, min_size=1, max_size=4))
def test_patterns_agree_with_regular_expressions(pattern, path):
    assert matches(".".join(pattern), ".".join(path)) == by_regex(".".join(pattern), ".".join(path))


@settings(derandomize=True, deadline=None)
@given(st.lists(segments, min_size=1, max_size=5).map(".".join))
def test_a_path_matches_itself_and_the_pattern_for_everything(path):
    assert matches(path, path)
    assert matches("**", path)
    assert matches("**." + path, path)
    assert matches(path + ".**", path)
    assert not is_glob(path)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("encoder.*", "encoder.scan", True),
        ("encoder.*", "encoder", False),
        ("encoder.*", "encoder.scan.hidden", False),
        ("encoder.**", "encoder.scan.hidden", True),
        ("**.hidden", "hidden", True),
        ("**.scan.**.hidden", "a.scan.b.c.hidden", True),
        ("head_?", "head_1", True),
        ("head_[01]", "head_2", False),
        ("Encoder", "encoder", False),
        ("layer*", "layer.norm", False),
    ],
)
def test_wildcards_stay_inside_a_segment_and_two_stars_cross_them(pattern, path, fits):
    assert matches(pattern, path) is fits


@settings(derandomize=True, deadline=None)
@given(st.text(max_size=8))
def test_a_name_is_valid_or_the_error_suggests_a_valid_one(text):
    try:
        assert check_name(text, "tag") == text
        assert "." not in text
    except TagError as error:
        offered = error.message.rsplit("for example ", 1)[1].rstrip(".").strip("'")
        assert check_name(offered, "tag") == offered


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.b", "has a dot"),
        ("", "is empty"),
        ("1st", "is not a name"),
        ("a b", "is not a name"),
        (None, "is a NoneType"),
    ],
)
def test_an_invalid_name_is_refused_with_the_reason(name, why):
    with pytest.raises(TagError, match=f"the label .* {why}"):
        check_name(name, "label")


@pytest.mark.parametrize("path", ["", ".", "a..b", ".a", "a.", None])
def test_an_empty_segment_is_refused(path):
    with pytest.raises(PathError, match=r"is not a path. Join the names with dots, outermost first"):
        split(path)


def test_a_path_is_split_at_its_dots():
    assert split("encoder.scan.hidden") == ["encoder", "scan", "hidden"]


def test_the_nearest_names_come_first_ignoring_case():
    assert nearest("ENCODR", ["decoder", "Encoder", "output"]) == ["Encoder", "decoder"]
    assert nearest("q", ["decoder"]) == []
    assert nearest("loss", ["loss", "Loss", "loss"]) == ["loss"]


def test_a_suggestion_lists_the_known_names_when_none_is_similar():
    many = [f"name{k}" for k in range(20)]
    assert suggestion("zzz", [], known_as="tags") == "There are no tags here."
    assert suggestion("zzz", ["a", "b"], known_as="tags") == "The tags here are 'a', 'b'."
    assert suggestion("zzz", many, known_as="tags").endswith("'name11' and 8 more.")
    assert suggestion("hiden", ["hidden"], known_as="tags") == "Did you mean 'hidden'?"


@pytest.mark.parametrize(
    ("name", "known"),
    [("print", "precision"), ("num_epochs", "num_workers"), ("logger", "loader"), ("name", "nan")],
)
def test_a_name_that_only_shares_letters_is_not_suggested(name, known):
    assert nearest(name, [known]) == []


@pytest.mark.parametrize(
    ("name", "known"),
    [("workers", "num_workers"), ("rnu", "run"), ("resume_from", "resume"), ("accuracy", "eval_accuracy")],
)
def test_a_misspelled_or_incomplete_name_is_suggested(name, known):
    assert nearest(name, ["epochs", known]) == [known]
