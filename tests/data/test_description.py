"""What the record of a run says about data that no loader has read yet."""

import csv

import numpy as np
import pytest
import torch

from flodl.data import Loader, describe_data


class Numbers:
    """Makes its own batches, and says what is in them."""

    num_samples = 4

    def __init__(self, first):
        self.description = {"source": "Numbers(4)", "content": f"from {first}"}

    def batch_maker(self, batch_size, device):
        return self

    reason, sampler = "numbers are made on the host", None

    def make(self, indices, keys):
        return indices


def test_data_that_makes_its_own_batches_describes_itself_with_and_without_a_loader():
    found = describe_data(Numbers(3))
    assert found == {"source": "Numbers(4)", "content": "from 3"}
    assert Loader(Numbers(3), 2).contents.items() >= found.items()


def test_a_dataset_of_a_package_is_described_by_its_plain_settings():
    commas, tabs = (describe_data(csv.DictReader([], dialect=name)) for name in ("excel", "excel-tab"))
    assert commas["dataset"] != tabs["dataset"]
    assert "dialect='excel-tab'" in tabs["dataset"]


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_table_is_described_by_the_content_of_its_columns(package):
    library = pytest.importorskip(package)
    make = library.table if package == "pyarrow" else library.DataFrame
    one, other = ({"x": np.arange(4.0), "y": np.arange(4) + first} for first in (0, 1))
    assert describe_data(make(one))["content"] == describe_data(make(one))["content"]
    assert describe_data(make(one))["content"] != describe_data(make(other))["content"]


def test_tensors_are_described_by_their_content():
    assert describe_data(torch.zeros(3))["content"] != describe_data(torch.ones(3))["content"]
