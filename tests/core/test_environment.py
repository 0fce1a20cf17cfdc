"""The environment, read in one place."""

import pytest

from flodl.core import environment


@pytest.mark.parametrize(("value", "refused"), [(None, False), ("", False), ("1", True), ("0", True)])
def test_colour_is_refused_by_any_text(monkeypatch, value, refused):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    assert environment.color_disabled() is refused


def test_the_verbosity_is_given_as_it_is_written(monkeypatch):
    monkeypatch.setenv("FLODL_VERBOSITY", " Debug ")
    assert environment.verbosity_text() == " Debug "
    monkeypatch.delenv("FLODL_VERBOSITY")
    assert environment.verbosity_text() is None


def test_the_folder_of_the_data_is_given_unless_it_is_empty(monkeypatch):
    monkeypatch.setenv("FLODL_DATA", "/data")
    assert environment.data_root_text() == "/data"
    monkeypatch.setenv("FLODL_DATA", "")
    assert environment.data_root_text() is None


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, False), ("", False), ("0", False), ("False", False), ("true", True), ("1", True)],
)
def test_a_build_server_says_so(monkeypatch, value, said):
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert environment.running_in_ci() is said
