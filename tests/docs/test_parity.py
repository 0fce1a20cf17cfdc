"""The parity page matches the code: every name that it recommends exists."""

import importlib
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
COLUMNS = ["floDl", "use", "remark"]


def _tables():
    """Return the rows of each section: {title: [(floDl name, [names to use], remark)]}."""
    tables, title = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells == COLUMNS or set(cells) == {"---"}:
                continue
            assert len(cells) == 3, f"this row has {len(cells)} cells: {line}"
            name, use, remark = cells
            tables.setdefault(title, []).append((name.strip("`"), re.findall(r"`([^`]+)`", use), remark))
    return tables


TABLES = _tables()
ROWS = [row for rows in TABLES.values() for row in rows]
USED = sorted({name for _, use, _ in ROWS for name in use})


def _resolve(dotted):
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("name", USED)
def test_every_name_to_use_exists(name):
    assert _resolve(name) is not None


@pytest.mark.parametrize(
    ("section", "least"),
    [
        ("Optimizers", 7),
        ("Schedules", 8),
        ("Clipping", 2),
        ("Initializers", 9),
        ("Losses", 15),
        ("Modules", 30),
        ("Activations", 17),
        ("Graph modules", 8),
        ("Mixed precision", 4),
    ],
)
def test_every_family_of_the_reference_is_covered(section, least):
    assert len(TABLES[section]) >= least


def test_every_row_names_what_to_use():
    assert not [name for name, use, _ in ROWS if not use]


def test_no_name_of_the_reference_is_listed_twice():
    names = [name for name, _, _ in ROWS]
    assert len(names) == len(set(names))


def test_every_name_that_flodl_adds_for_parity_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    plumbing = {"Schedule", "StepSchedule", "gradient_values"}
    added = [f"flodl.{module}.{name}" for module in ("nn", "optim") for name in _exported(module) - plumbing]
    assert not [name for name in added if name not in page]


def _exported(module):
    return set(importlib.import_module(f"flodl.{module}").__all__)


def test_flodl_repeats_no_name_that_torch_has_in_the_same_role():
    assert not [
        name for name in _exported("nn") if hasattr(torch.nn, name) or hasattr(torch.nn.functional, name)
    ]


def test_the_smooth_l1_loss_of_torch_is_that_of_the_reference():
    smooth_l1 = _resolve("torch.nn.functional.smooth_l1_loss")
    errors = torch.tensor([0.5, 3.0])
    assert smooth_l1(errors, torch.zeros(2), beta=1.0).item() == 1.3125
