"""The kind of a command, and contradictory keys."""

from pathlib import Path

import pytest

from flodl.cli.manifest.command_kind import Kind, kind_of, kind_or_none
from flodl.cli.manifest.parser import parse_document
from flodl.core.errors import ManifestError


def node(text):
    return parse_document(f"x: {text}", Path("fdl.yml")).at(("x",))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", Kind.PATH),
        ("{}", Kind.PATH),
        ("{description: words}", Kind.PATH),
        ("{path: y}", Kind.PATH),
        ("{run: y}", Kind.RUN),
        ("{run: y, docker: dev, append: z}", Kind.RUN),
        ("{run: y, path: }", Kind.RUN),
        ("{training: {lr: 1}}", Kind.PRESET),
        ("{options: {a: 1}}", Kind.PRESET),
        ("{options: {}}", Kind.PATH),
    ],
)
def test_the_keys_decide_the_kind(text, kind):
    assert kind_of("x", node(text)) is kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{run: a, path: b}", r"fdl\.yml:1: command `x`: it has both `run:` and `path:`"),
        ("{docker: dev}", "`docker:` without `run:`"),
        ("{append: y}", "`append:` without `run:`"),
        ("{path: y, training: {lr: 1}}", "it has `training:` next to `path:`"),
        ("{run: y, options: {a: 1}}", "it has `options:` next to `run:`"),
        ("words", "expected a map"),
        ("[a]", "expected a map"),
    ],
)
def test_contradictory_keys_are_an_error_or_no_kind(text, message):
    with pytest.raises(ManifestError, match=message):
        kind_of("x", node(text))
    assert kind_or_none("x", node(text)) is None
