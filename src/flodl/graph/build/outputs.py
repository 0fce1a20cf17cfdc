"""Checks of the named outputs of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flodl.core import BuildError, RefError
from flodl.core.paths import check_name, suggestion

from ..plan.outputs import NamedOutputs
from .draft import Draft
from .names import check_one_by_one
from .references import check_own_tag


def check_outputs(
    names: tuple[str, ...], renamed: Mapping[str, str], tagged: Mapping[str, Draft]
) -> list[tuple[str, str]]:
    """Return pairs of output name and tag; raise if a tag does not exist or a name is repeated."""
    check_one_by_one("output", names)
    bound = [*zip(names, names), *renamed.items()]
    if not bound:
        raise BuildError("output() returns nothing. Name the tags to return: output('logits', 'value').")
    for name, tag in bound:
        is_known = check_own_tag(tag, "output") in tagged
        check_name(name, "output")
        if not is_known:
            hint = suggestion(tag, tagged, known_as="tags")
            raise RefError(f"output({tag!r}): this tag does not exist. Call tag before output. {hint}")
    if len(dict(bound)) != len(bound):
        raise BuildError(f"output({', '.join(map(repr, names))}) names an output twice. Name each once.")
    return bound


def check_first_outputs(bound: Sequence[tuple[str, str]], streams: Sequence[Draft]) -> None:
    """Raise if the stream is what another output returned: the graph would return the last one only."""
    for stream in streams:
        if isinstance(stream.target, NamedOutputs):
            tags = [source.tags for source in stream.sources]
            before = [(name, name if name in own else own[0]) for name, own in zip(stream.target.names, tags)]
            words = [
                repr(name) if name == tag else f"{name}={tag!r}"
                for name, tag in dict([*before, *bound]).items()
            ]
            raise BuildError(
                "output is called twice, and only the last call would count. Name all outputs in one call: "
                f"output({', '.join(sorted(words, key=lambda word: '=' in word))})."
            )


def check_all_returned(open_streams: Sequence[Draft], returned: Sequence[Draft]) -> None:
    """Raise if streams are open and one of them is not returned: it would be lost."""
    lost = [stream for stream in open_streams if stream not in returned]
    if lost:
        raise BuildError(
            f"{len(open_streams)} streams are open, and output does not return {lost[0].describe()}. "
            "Return every open stream, or call merge before output."
        )
