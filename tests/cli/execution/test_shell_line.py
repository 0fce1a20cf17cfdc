"""The shell line of a `run:` command."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.cli.execution.shell_line import compose, quote, user_words
from flodl.core.errors import ManifestError


@pytest.mark.parametrize(
    ("run", "append", "user", "line"),
    [
        ("cargo test", "-- --nocapture", [], "cargo test -- --nocapture"),
        (
            "cargo test",
            "-- --nocapture",
            ["-p", "x", "--", "--ignored"],
            "cargo test -p x -- --nocapture --ignored",
        ),
        ("cmd", "--no-ansi", ["--ansi"], "cmd --no-ansi --ansi"),
        ("cmd", "", [], "cmd"),
        ("cmd", "  ", ["a"], "cmd a"),
        ("cmd", "", ["a", "--", "b"], "cmd a -- b"),
        ("cmd", "", ["a", "--"], "cmd a"),
        ("cmd", "x --", [], "cmd x --"),
        ("cmd | tee log", "", ["it's", ""], "cmd | tee log 'it'\"'\"'s' ''"),
        ("cmd", "--flag=--", ["a"], "cmd --flag=-- a"),
    ],
)
def test_both_halves_are_joined_at_the_dashes(run, append, user, line):
    assert compose(run, append, tuple(user)) == line


def test_words_for_the_script_follow_the_dashes():
    assert user_words("fdl t", ("--", "-v", "--", "x")) == ("-v", "--", "x")
    assert user_words("fdl t", ()) == ()
    with pytest.raises(
        ManifestError, match=r"`fdl t` does not accept extra arguments. Use `fdl t -- -k 'a b' x`"
    ):
        user_words("fdl t", ("-k", "a b", "--", "x"))


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
def test_quoted_words_survive_the_shell(words):
    assert shlex.split(" ".join(map(quote, words))) == words
