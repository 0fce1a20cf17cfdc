"""The rules for merging documents."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.cli.manifest.document import plain
from flodl.cli.manifest.merge import deletions, merge, merge_all

from .documents import SCALARS, maps, table


def merged(*layers):
    return plain(merge_all(table(layer) for layer in layers))


@pytest.mark.parametrize(
    ("lower", "upper", "result"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 3}, {"a": 3}),
        ({"a": 3}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"b": 2}, {"a": None}, {"b": 2, "a": None}),
        ({"a": None}, {"a": None}, {}),
        ({"b": 2}, {"c": {"a": None}}, {"b": 2, "c": {"a": None}}),
        ({"a": {"b": 1}, "c": 1}, {"a": {"b": None}}, {"c": 1}),
        ({"a": {}}, {"a": {}}, {"a": {}}),
        ({"commands": {"x": {"run": "y"}, "z": 1}}, {"commands": {"x": None}}, {"commands": {"z": 1}}),
        ({"a": None}, {"b": 1}, {"a": None, "b": 1}),
    ],
)
def test_maps_merge_and_other_values_replace(lower, upper, result):
    assert merged(lower, upper) == result


def test_keys_of_the_upper_layer_move_to_the_end():
    assert list(merged({"a": 1, "b": 2, "c": 3}, {"a": 4, "d": 5, "b": 6})) == ["c", "a", "d", "b"]


def test_a_value_keeps_the_origin_of_the_last_layer_that_set_it():
    document = merge(table({"a": 1, "b": {"c": 1, "d": 1}}, "low.yml"), table({"b": {"c": 2}}, "high.yml"))
    assert document.at(("a",)).origin.file.name == "low.yml"
    assert document.at(("b", "d")).origin.file.name == "low.yml"
    assert document.at(("b", "c")).origin.file.name == "high.yml"


def shapes(document, path=()):
    for key, value in document.items():
        yield (*path, key), isinstance(value, dict)
        if isinstance(value, dict):
            yield from shapes(value, (*path, key))


def agree(*documents):
    """Return whether no path is a map in one document and a value in another."""
    known = {}
    return all(
        known.setdefault(path, is_map) == is_map
        for document in documents
        for path, is_map in shapes(document)
    )


@settings(deadline=None)
@given(maps(SCALARS), maps(SCALARS), maps(SCALARS))
def test_merging_is_associative_in_values_and_order_where_maps_stay_maps(a, b, c):
    """A deletion, or a value that replaces a map, depends on the layers below it."""
    if not agree(a, b, c):
        return
    one, two, three = table(a), table(b), table(c)
    left, right = merge(merge(one, two), three), merge(one, merge(two, three))
    assert list(shapes(plain(left))) == list(shapes(plain(right)))
    assert plain(left) == plain(right)


@settings(deadline=None)
@given(maps(SCALARS))
def test_an_empty_layer_changes_nothing(document):
    assert merged(document, {}) == merged({}, document) == document


def test_a_key_that_is_deleted_twice_stays_deleted():
    assert merged({"a": 1, "b": 2}, {"a": None}, {"a": None}) == {"b": 2}
    assert merged({"a": 1}, {"a": None}, {"a": 3}) == {"a": 3}


def test_deletions_are_reported_with_both_origins():
    layers = [table({"a": {"b": 1}}, "low.yml"), table({"a": {"b": None}, "c": None}, "high.yml")]
    ((path, origin, deleted),) = deletions(layers)
    assert (path, origin.file.name, deleted.file.name) == (("a", "b"), "high.yml", "low.yml")


@settings(deadline=None)
@given(maps(SCALARS), maps(SCALARS))
def test_merging_the_same_layer_twice_changes_nothing(lower, upper):
    assert merged(lower, upper, upper) == merged(lower, upper)


@settings(deadline=None)
@given(maps(SCALARS), maps(st.one_of(SCALARS, st.none())))
def test_null_deletes_an_existing_key(lower, upper):
    found = merged(lower, upper)
    for key, value in upper.items():
        if value is None:
            assert (key in found) is (key not in lower)
