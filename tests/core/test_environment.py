"""Reading environment variables."""

import pytest

from flodl.core import environment


@pytest.mark.parametrize(("value", "refused"), [(None, False), ("", False), ("1", True), ("0", True)])
def test_no_color_disables_color_with_any_text(monkeypatch, value, refused):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    assert environment.color_disabled() is refused


def test_the_verbosity_is_returned_unparsed(monkeypatch):
    monkeypatch.setenv("FLODL_VERBOSITY", " Debug ")
    assert environment.verbosity_text() == " Debug "
    monkeypatch.delenv("FLODL_VERBOSITY")
    assert environment.verbosity_text() is None


def test_an_empty_data_folder_counts_as_unset(monkeypatch):
    monkeypatch.setenv("FLODL_DATA", "/data")
    assert environment.data_root_text() == "/data"
    monkeypatch.setenv("FLODL_DATA", "")
    assert environment.data_root_text() is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("0", False), ("False", False), ("true", True), ("1", True)],
)
def test_ci_is_recognized(monkeypatch, value, expected):
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert environment.running_in_ci() is expected
