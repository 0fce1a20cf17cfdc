"""Draw a graph as SVG or DOT, and profile it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from flodl.core import PictureError
from flodl.core.formats import a_type
from flodl.core.output_files import write_output
from flodl.core.usage.calls import PictureCallError, explain_methods

from .core import GraphCore, Initial
from .picture import place, sketch, write_dot, write_svg
from .plan.spec import Spec, inputs_of
from .profile.measure import measure
from .profile.profile import Profile


class LastProfile:
    """Hold the last profile; copies and pickles do not contain it."""

    def __init__(self) -> None:
        self.profile: Profile | None = None

    def __reduce__(self) -> tuple[type[LastProfile], tuple[()]]:
        return LastProfile, ()


@explain_methods(
    PictureCallError,
    examples={
        "dot_with_profile": "Write graph.dot_with_profile(example=x).",
        "svg": "Write graph.svg('model.svg').",
        "svg_with_profile": "Write graph.svg_with_profile('model.svg', example=x).",
    },
)
class GraphDrawing(GraphCore):
    """Draw and profile a graph."""

    def __init__(
        self, spec: Spec, modules: Mapping[str, nn.Module], initial: Mapping[str, Initial] | None = None
    ) -> None:
        super().__init__(spec, modules, initial)
        self._measured = LastProfile()

    def profile(self, *inputs: Any, repeats: int = 5, **named: Any) -> Profile:
        """Time every node on example inputs, on the model's current device and in its current mode.

        The model's state does not change: carried values, tags, buffers and the RNG state are restored.
        Only the forward pass is timed, without gradients.
        """
        self._measured.profile = measure(self, inputs, named, repeats=repeats)
        return self._measured.profile

    def svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the graph as SVG text, and write it to a file if a path is given."""
        return self._svg(None, path)

    def _repr_svg_(self) -> str | None:
        """Show the picture when a notebook displays the graph."""
        try:
            return self.svg()
        except PictureError:
            return None

    def svg_with_profile(self, path: str | os.PathLike[str] | None = None, *, example: Any = None) -> str:
        """Return an SVG heat map of the last `profile`; with an `example` input, profile first."""
        return self._svg(self._last_profile(example, "svg_with_profile"), path)

    def dot(self) -> str:
        """Return the graph in the DOT language of Graphviz."""
        return write_dot(sketch(self))

    def dot_with_profile(self, *, example: Any = None) -> str:
        """Return the graph in DOT with the times of the last `profile`; with an `example`, profile first."""
        return write_dot(sketch(self, self._last_profile(example, "dot_with_profile")))

    def _svg(self, profile: Profile | None, path: str | os.PathLike[str] | None) -> str:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise PictureError(
                f"the picture cannot be written to {a_type(path)}. Pass the path of a file, such as "
                "'model.svg', or nothing. Example inputs are passed as example=x."
            )
        suffix = os.path.splitext(path)[1].lower() if path is not None else ""
        if suffix in (".png", ".jpg", ".jpeg", ".pdf", ".gif", ".webp"):
            raise PictureError(
                f"{os.fspath(path or '')!r} asks for {suffix[1:].upper()}, but the picture is an SVG. "
                "Use the suffix .svg. Browsers show it, and other programs can convert it."
            )
        drawing = sketch(self, profile)
        text = write_svg(drawing, place(drawing))
        if path is not None:
            write_output(path, text, example="model.svg", error=PictureError)
        return text

    def _last_profile(self, example: Any, caller: str) -> Profile:
        if example is not None:
            args, named = inputs_of(example, self.input_names[0])
            return self.profile(*args, **named)
        if self._measured.profile is None:
            raise PictureError(
                f"{caller} has no times to show. Call model.profile(x) first, or pass an example: "
                f"model.{caller}(example=x)."
            )
        return self._measured.profile
