"""Check that a merge function can take the streams, and how it takes them: one by one, or as a list."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from flodl.core import BuildError
from flodl.core.paths import suggestion

from ..plan.signature import MergeParameters, merge_parameters
from .draft import check_target, type_name


def takes_values_one_by_one(function: Callable[..., Any], num_streams: int) -> bool:
    """Return whether a merge function gets the values as separate arguments; raise if it cannot take them."""
    name = type_name(check_target(function, "merge"))
    parameters = merge_parameters(function)
    if parameters is None:
        raise BuildError(
            f"merge cannot read the parameters of {name}. Wrap it in a function of the list "
            f"(lambda values: {name}(values)) or of the values (lambda a, b: …)."
        )
    if parameters.any_number:
        return True
    if parameters.needed <= 1 and parameters.most >= 1:
        _check_takes_list(name, parameters, num_streams)
        return False
    if not parameters.needed <= num_streams <= parameters.most:
        raise BuildError(
            f"merge joins {num_streams} streams, but {name} takes {_range(parameters)} values. "
            "Give it one parameter for each stream, or a single parameter for the list of all."
        )
    return True


def _check_takes_list(name: str, parameters: MergeParameters, num_streams: int) -> None:
    if parameters.first_is_tensor:
        raise BuildError(
            f"merge passes the list of values to {name}, which takes one tensor. Merge first, for example "
            f"with .merge('cat'), and then add .through({name})."
        )
    # `f(a, b=None)` may mean two values or a list and an option. A number or a string is an option.
    fits_separately = parameters.most >= num_streams
    could_be_value = any(default is None or isinstance(default, Tensor) for default in parameters.defaults)
    if fits_separately and could_be_value:
        raise BuildError(
            f"merge cannot tell whether {name} takes the {num_streams} values one by one or as a list, "
            "because it has a parameter with the default None. Wrap it: merge(lambda values: f(values)) for "
            "the list, or merge(lambda a, b: f(a, b)) for the values."
        )


def _range(parameters: MergeParameters) -> str:
    needed, most = parameters.needed, parameters.most
    return str(most) if needed == most else f"{needed} to {most}"


def check_merge(op: Any, dim: Any, operations: Collection[str]) -> None:
    """Raise if an operation is unknown, or does not have a dimension."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise BuildError(f"merge got dim={dim!r}. Pass the index of a dimension, such as -1.")
    if dim != -1 and op != "cat":
        name = repr(op) if isinstance(op, str) else "a function"
        raise BuildError(
            f"merge({name}, dim={dim}): only 'cat' has a dimension. The others merge the values of all "
            "branches element by element. Remove dim, or use your own function."
        )
    if isinstance(op, str) and op not in operations:
        hint = suggestion(op, operations, known_as="operations")
        raise BuildError(f"merge has no operation {op!r}. {hint} You can also pass a function.")
