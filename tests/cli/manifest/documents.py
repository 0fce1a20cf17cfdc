"""Hypothesis strategies for documents."""

from pathlib import Path
from types import MappingProxyType

from hypothesis import strategies as st

from flodl.cli.manifest.document import Leaf, Origin, Table

KEYS = st.sampled_from(["a", "b", "c", "commands", "x.y", "1", "yes", ""])
TEXTS = st.one_of(
    st.sampled_from(["yes", "null", "1e-4", "a: b", "# x", "- x", "é", "two words", '"q"']),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
)
SCALARS = st.one_of(
    st.integers(-1000, 1000), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
LISTS = st.lists(SCALARS, max_size=3)


def maps(leaf, depth=3):
    inner = leaf if depth == 1 else st.one_of(leaf, maps(leaf, depth - 1))
    return st.dictionaries(KEYS, inner, max_size=4)


def table(data, file="fdl.yml"):
    """Build a document from plain data. Every leaf has the same line."""
    origin = Origin(Path(file), 1)
    entries = {
        key: table(value, file) if isinstance(value, dict) else Leaf(value, origin)
        for key, value in data.items()
    }
    return Table(MappingProxyType(entries), origin)
