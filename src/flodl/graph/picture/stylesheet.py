"""The dark colors as a style sheet; the light ones are attributes, for viewers without styles."""

from __future__ import annotations

from collections.abc import Iterator

from .palette import CLUSTERS, EDGES, FAMILIES, HEAT, HEAT_MUTED, MUTED, PAGE, TAG, Look


def stylesheet(*, with_heat: bool) -> str:
    """Return the rules; every class starts with `fl-`, so that they do not affect the surrounding page."""
    rules = list(_rules(with_heat))
    return "@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}"


def _rules(with_heat: bool) -> Iterator[str]:
    yield f".fl-page {{ fill: {PAGE.dark.fill} }}"
    yield f".fl-ink {{ fill: {PAGE.dark.text} }}"
    yield f".fl-muted {{ fill: {MUTED.dark} }}"
    yield f".fl-tag {{ fill: {TAG.dark} }}"
    for family, look in FAMILIES.items():
        yield from _surface(f".fl-{family}", look)
    for kind, look in CLUSTERS.items():
        yield from _surface(f".fl-{kind}", look)
        yield f".fl-{kind}.fl-heading {{ stroke: {look.dark.fill} }}"
    for edge, line in EDGES.items():
        yield f".fl-edge-{edge} path {{ stroke: {line.dark} }}"
        yield f".fl-edge-{edge} .fl-tip, .fl-edge-{edge} text {{ fill: {line.dark} }}"
    if with_heat:
        for step, look in enumerate(HEAT):
            yield from _surface(f".fl-heat-{step}", look)
        yield f".fl-hot .fl-muted, .fl-hot .fl-tag {{ fill: {HEAT_MUTED.dark} }}"


def _surface(selector: str, look: Look) -> Iterator[str]:
    yield f"{selector} > rect {{ fill: {look.dark.fill}; stroke: {look.dark.stroke} }}"
    yield f"{selector} .fl-ink {{ fill: {look.dark.text} }}"
