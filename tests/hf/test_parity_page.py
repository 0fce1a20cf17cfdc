"""The page of the parity matrix has a cell for every family and head."""

import importlib.util
import re
from pathlib import Path

import pytest

from flodl.hf.heads import Head

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("write_hf_parity", DOCS / "write_hf_parity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_a_number_in_every_cell(script):
    text = (DOCS / "hf-parity.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", text, flags=re.M))
    found = []
    for family, row in rows.items():
        for head, cell in zip(Head, row.split(" | "), strict=True):
            if cell == "–":
                continue
            found.append((family, head))
            outputs, gradients = map(float, cell.split(", "))
            assert max(outputs, gradients) < 1e-5, (family, head)
    assert found == script.cells(), "run python docs/write_hf_parity.py"
    assert text.startswith(script.HEAD)


@pytest.mark.slow
def test_a_cell_is_measured_again_within_its_bound(script):
    pytest.importorskip("transformers")
    differences = script.measure("distilbert", Head.QUESTION_ANSWERING)
    assert all(difference.is_ok for difference in differences)
    assert len(differences) == 3
