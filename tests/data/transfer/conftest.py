"""The simulated device as a fixture."""

import pytest

from .cuda_loaders import simulated


@pytest.fixture
def cuda():
    with simulated() as device:
        yield device
