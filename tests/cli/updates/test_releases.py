"""Versions: only releases count, and only major, minor and patch are compared."""

import pytest

from flodl.cli.updates.releases import is_newer, newest, parse_pip_versions

PIP = """\
flodl (0.10.0)
Available versions: 0.10.0, 0.9.1, 0.9.0
  INSTALLED: 0.9.0
  LATEST:    0.10.0
"""


@pytest.mark.parametrize(
    ("latest", "installed", "newer"),
    [
        ("0.2.0", "0.1.0", True),
        ("0.10.0", "0.9.9", True),
        ("1.0", "0.9.9", True),
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.2.0", False),
        ("0.2.0", "0.2.0.dev4", False),
        ("0.2.0", "0.2.0rc1", False),
        ("0.2.0", "0.3.0.dev1+gabc", False),
        ("0.2.0", "0.1.9+local", True),
        ("0.2.0.1", "0.2.0", False),
        ("0.2.0rc1", "0.1.0", False),
        ("0.2.0", "unknown", False),
        ("", "0.1.0", False),
        ("0.2.0\x1b[31m", "0.1.0", False),
    ],
)
def test_a_release_is_newer_by_its_first_three_numbers(latest, installed, newer):
    assert is_newer(latest, than=installed) is newer


def test_newest_compares_numbers_and_ignores_pre_releases():
    assert newest(["0.9.0", "0.10.0", "0.11.0rc1", "0.12.0.dev1", "nonsense"]) == "0.10.0"
    assert newest(["0.1.0a1"]) is None
    assert newest([]) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PIP, ["0.10.0", "0.9.1", "0.9.0"]),
        (PIP.replace("\n", "\r\n"), ["0.10.0", "0.9.1", "0.9.0"]),
        (f"WARNING: something\n{PIP}", ["0.10.0", "0.9.1", "0.9.0"]),
        ("Available versions: 1.0", ["1.0"]),
        ("ERROR: No matching distribution found for flodl\n", []),
        ("", []),
    ],
)
def test_versions_are_parsed_from_the_output_of_pip(text, found):
    assert parse_pip_versions(text) == found
