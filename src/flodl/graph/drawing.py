"""The part of a graph that draws itself and says where its time goes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import nn

from flodl.core import PictureError
from flodl.core.files import write_atomic

from .paths import as_graph
from .plan.spec import inputs_of
from .profile.profile import Profile

if TYPE_CHECKING:
    pass


class LastProfile:
    """Holds the profile of the last measurement; a copy and a pickle hold none."""

    def __init__(self) -> None:
        self.profile: Profile | None = None

    def __reduce__(self) -> tuple[type[LastProfile], tuple[()]]:
        return LastProfile, ()


class Pictured(nn.Module):
    """The part of `Graph` that makes pictures and profiles."""

    def __init__(self) -> None:
        super().__init__()
        self._measured = LastProfile()

    def profile(self, *inputs: Any, repeats: int = 5, **named: Any) -> Profile:
        """Time every node on example inputs, on the device and in the mode the model is in.

        Nothing that the model remembers changes: carried values, tags, buffers and random numbers are
        put back. The times are of the forward pass alone, without gradients.
        """
        from .profile.measure import measure

        graph = as_graph(self)
        self._measured.profile = measure(graph, inputs, named, repeats=repeats)
        return self._measured.profile

    def svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """Draw the graph as SVG text, and write it to a file if a path is given."""
        return self._svg(None, path)

    def _repr_svg_(self) -> str | None:
        """Show the picture where a notebook shows the graph."""
        try:
            return self.svg()
        except PictureError:
            return None

    def svg_with_profile(self, path: str | os.PathLike[str] | None = None, *, example: Any = None) -> str:
        """Draw the graph as a heat map of the last `profile`; an `example` input makes a new one first."""
        return self._svg(self._last_profile(example, "svg_with_profile"), path)

    def dot(self) -> str:
        """Describe the graph in the DOT language of Graphviz."""
        from .picture import sketch, write_dot

        graph = as_graph(self)
        return write_dot(sketch(graph))

    def dot_with_profile(self, *, example: Any = None) -> str:
        """Describe the graph in DOT with the times of the last `profile`; an `example` makes a new one."""
        from .picture import sketch, write_dot

        graph = as_graph(self)
        return write_dot(sketch(graph, self._last_profile(example, "dot_with_profile")))

    def _svg(self, profile: Profile | None, path: str | os.PathLike[str] | None) -> str:
        from .picture import place, sketch, write_svg

        suffix = os.path.splitext(path)[1].lower() if path is not None else ""
        if suffix in (".png", ".jpg", ".jpeg", ".pdf", ".gif", ".webp"):
            raise PictureError(
                f"{os.fspath(path or '')!r} asks for {suffix[1:].upper()}, and the picture is an SVG. "
                "Name it .svg; browsers show it, and other programs convert it."
            )
        graph = as_graph(self)
        drawing = sketch(graph, profile)
        text = write_svg(drawing, place(drawing))
        if path is not None:
            write_atomic(path, text)
        return text

    def _last_profile(self, example: Any, asked_by: str) -> Profile:
        if example is not None:
            args, named = inputs_of(example)
            return self.profile(*args, **named)
        if self._measured.profile is None:
            raise PictureError(
                f"{asked_by} has no times to show. Call model.profile(x) first, or give an example: "
                f"model.{asked_by}(example=x)."
            )
        return self._measured.profile
