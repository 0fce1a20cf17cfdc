"""What the command line sets for the whole process is set back after each test."""

import pytest
import torch

from flodl.core import log


@pytest.fixture(autouse=True)
def unchanged_surroundings(monkeypatch):
    monkeypatch.setenv("FLODL_VERBOSITY", "normal")
    monkeypatch.setenv("NO_COLOR", "")
    verbosity, num_threads = log.verbosity(), torch.get_num_threads()
    log.set_verbosity("normal")
    yield
    log.set_verbosity(verbosity)
    torch.set_num_threads(num_threads)
