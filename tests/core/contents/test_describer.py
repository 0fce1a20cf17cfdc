"""Different functions and objects have different descriptions, and nothing of the user is called."""

import functools
import json
from array import array
from collections import Counter, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from flodl.core.contents import Contents, content_hash

rates = {"low": 0.1}
counter = 0
log = []


class Tricky:
    """Everything that a description must not call."""

    __slots__ = ("__dict__", "level")

    def __init__(self, level):
        self.level = level
        self.itself = self

    @property
    def size(self):
        raise AssertionError

    def __getattr__(self, name):
        raise AssertionError

    def __repr__(self):
        raise AssertionError

    def __eq__(self, other):
        raise AssertionError

    __hash__ = None

    def __iter__(self):
        raise AssertionError

    def __len__(self):
        raise AssertionError


def reads_a_dict(x):
    return x * rates["low"]


def changes_globals(x):
    global counter
    counter += 1
    log.append(x)
    rates["low"] += 1
    return x


def recursive(x):
    return x if x < 1 else recursive(x - 1)


Pair = namedtuple("Pair", "left right")


def test_an_object_is_described_without_calling_it():
    assert Contents().of(Tricky(3)) == Contents().of(Tricky(3))
    assert Contents().of(Tricky(3)) != Contents().of(Tricky(4))
    found = Contents().of(Tricky(3))
    assert (found["level"], found["itself"]) == (3, "Tricky")
    assert found["class"].startswith("Tricky #")


def test_a_value_that_a_function_assigns_is_not_described():
    assert Contents().of(reads_a_dict)["rates"] == {"low": 0.1}
    assert isinstance(Contents().of(changes_globals), str)


def test_a_docstring_does_not_change_the_description_and_the_code_does():
    def one():
        """Say one thing."""
        return 1

    def same():
        """Say another thing."""
        return 1

    def other():
        return 2

    labels = [Contents().of(function).partition("#")[2] for function in (one, same, other)]
    assert labels[0] == labels[1] != labels[2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(100), torch.arange(100) + 1),
        (np.arange(100.0), np.arange(100.0) + 1),
        (torch.zeros(2_000_000), torch.cat([torch.zeros(1_999_999), torch.ones(1)])),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (nn.Linear(2, 2), nn.Linear(2, 2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (list(range(500)), [*range(499), 7]),
        ({"a": {1, 2}}, {"a": {1, 3}}),
        ({(1, 2): 3, (1, 3): 4}, {(1, 2): 3, (1, 3): 5}),
        (Pair(1, 2), Pair(1, 3)),
        (defaultdict(list, a=[1]), defaultdict(list, a=[2])),
        (Counter("aab"), Counter("abb")),
        (nn.functional.relu, nn.functional.gelu),
        ("x" * 1000, "x" * 999 + "y"),
        (torch.float16, torch.float32),
        (range(32), range(32, 64)),
        (slice(1, None), slice(2, None)),
        (array("d", [1.0]), array("d", [2.0])),
        (array("q", range(100)), array("q", range(1, 101))),
    ],
)
def test_different_values_have_different_descriptions(one, other):
    assert Contents().of(one) != Contents().of(other)
    assert Contents().of(one) == Contents().of(one)
    assert json.loads(json.dumps(Contents().of(one))) == Contents().of(one)


def test_a_large_dict_has_the_same_description_in_every_order():
    words = {f"w{number}": number for number in range(800)}
    assert Contents().of(words) == Contents().of(dict(reversed(words.items())))
    assert Contents().of(words) != Contents().of({**words, "w799": 0})


def test_a_description_is_limited_in_depth_and_size():
    deep = []
    for _ in range(1000):
        deep = [deep, deep]
    wide = {str(number): {"a": {"b": number}} for number in range(100_000)}
    for value in (deep, wide, [wide] * 1000, recursive):
        assert len(json.dumps(Contents().of(value))) < 100_000


def test_known_objects_have_their_names_and_secrets_are_hidden():
    model = nn.Linear(2, 2)
    described = Contents({id(model): "the model"}).of({"net": model, "api_key": "abc"})
    assert described["net"] == "the model"
    assert "abc" not in described["api_key"]


@pytest.mark.parametrize("value", [iter([1]), open, object(), torch.Generator(), (one for one in [1])])
def test_what_has_no_settings_is_described_by_its_name(value):
    assert isinstance(Contents().of(value), str)
    assert "0x" not in Contents().of(value)


def test_the_hash_of_a_large_array_reads_it_in_places_and_does_not_copy_it():
    large = np.lib.stride_tricks.as_strided(np.zeros(1), shape=(1 << 40, 2), strides=(0, 0))
    assert content_hash(large) == content_hash(large)
    rows = torch.zeros(3_000_000, dtype=torch.bfloat16)
    assert content_hash(rows) != content_hash(rows + 1)


def test_the_code_of_a_decorated_method_counts():
    class Model:
        @torch.no_grad()
        def predict(self, x):
            return x

    class Other:
        @torch.no_grad()
        def predict(self, x):
            return x + 1

    labels = [Contents().of(kind).partition("#")[2] for kind in (Model, Other)]
    assert labels[0] != labels[1]


def test_adding_a_docstring_does_not_change_the_description():
    def bare(x):
        y = 3
        x.append(y)

    def described(x):
        """Append three."""
        y = 3
        x.append(y)

    labels = [Contents().of(function).partition("#")[2] for function in (bare, described)]
    assert labels[0] == labels[1]


@pytest.mark.parametrize(
    "items",
    [
        [0.5] * 5000,
        list(range(5000)),
        [2**70] * 5000,
        ["a"] * 5000,
        [(0, "a")] * 5000,
        dict.fromkeys(range(5000), 1),
    ],
    ids=["floats", "integers", "large integers", "strings", "rows", "dict"],
)
def test_every_item_of_a_long_list_counts(items):
    before = Contents().of(items)
    assert Contents().of(items) == before
    items[1236] = [9, "b"] if isinstance(items[1236], tuple) else items[1236] + items[1236]
    assert Contents().of(items) != before


@pytest.mark.parametrize("count", [1000, 5000])
def test_what_follows_a_long_list_of_rows_is_described(count):
    class Reviews:
        def __init__(self):
            self.rows = [([f"w{number * 7 % 300}"] * 20, number % 2) for number in range(count)]
            self.options = {"max_len": 20}
            self.more = [{"words": ["a"] * 20, "label": number} for number in range(count)]
            self.weights = torch.ones(3)

    found = Contents().of(Reviews())
    assert found["options"] == {"max_len": 20}
    assert found["weights"] == [1.0, 1.0, 1.0]
    for name in ("rows", "more"):
        # Of so many rows, 1000 are compared: the first and the last one, and some in between.
        changed = Reviews()
        last = getattr(changed, name)[-1]
        (last[0] if isinstance(last, tuple) else last["words"])[-1] = "other"
        again = Contents().of(changed)
        assert again.pop(name) != found[name]
        assert again == {key: item for key, item in found.items() if key != name}


def test_a_large_set_of_strings_does_not_depend_on_its_order():
    names = [f"name {number}" for number in range(5000)]
    assert Contents().of(set(names)) == f"5000 items #{Contents().of(sorted(names)).partition('#')[2]}"


def test_keys_and_strings_deep_inside_a_dict_are_described():
    inner = {"g": "deep"}
    for name in reversed("abcdefh"):
        inner = {name: inner}

    def step():
        return inner

    found = Contents().of(step)["inner"]
    for name in "abcdef":
        found = found[name]
    assert list(found) == ["h"]


def test_the_defaults_of_a_constructor_are_not_values_of_its_objects():
    class Block(nn.Module):
        def __init__(self, hidden=64, *, rate=0.1):
            super().__init__()
            self.layer = nn.Linear(hidden, 1)

        def forward(self, x, scale=2.0):
            return self.layer(x) * scale

    found = Contents().of_class(Block)
    assert found.get("scale") == 2.0
    assert not {"hidden", "rate"} & {*found}
