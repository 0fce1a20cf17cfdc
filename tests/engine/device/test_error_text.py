"""Which lines an error message names: the innermost one, and the user's own line that led to it."""

from __future__ import annotations

import sys

import pytest
import torch

from flodl.engine.device.error_text import source_line


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Install a small library that fails two calls deep."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    source = "def scale(x):\n    return read(x)\n\n\ndef read(x):\n    raise RuntimeError('it waits')\n"
    (folder / "a_library_that_waits.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    yield __import__("a_library_that_waits")
    del sys.modules["a_library_that_waits"]


def lines_of(function, *arguments) -> str:
    with pytest.raises(Exception) as failed:
        function(*arguments)
    return source_line(failed.value)


def test_a_line_of_a_library_is_followed_by_the_users_line(library) -> None:
    def step_function(x):
        return library.scale(x)  # the user's line

    told = lines_of(step_function, 1)
    inner, user = told.split(", called from ")
    assert inner.startswith(" at ")
    assert inner.endswith("a_library_that_waits.py:6 (raise RuntimeError('it waits'))")
    assert "test_error_text.py:" in user
    assert user.endswith("(return library.scale(x)  # the user's line)")


def test_a_line_of_the_user_stands_alone(library) -> None:
    told = lines_of(lambda: int("four"))
    assert told.endswith('(told = lines_of(lambda: int("four")))')
    assert "called from" not in told


def test_code_of_torch_that_looks_like_a_model_is_named_and_its_machinery_is_not() -> None:
    def step_function():
        return torch.distributions.Normal(0.0, -1.0, validate_args=True)

    told = lines_of(step_function)
    assert "torch/distributions/distribution.py:" in told
    assert told.endswith("(return torch.distributions.Normal(0.0, -1.0, validate_args=True))")
    told = lines_of(torch.nn.Linear(2, 2), torch.zeros(3))
    assert "module.py" not in told
    assert "torch/nn/modules/linear.py:" in told
