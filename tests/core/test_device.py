"""Parsing a device that a user named."""

import pytest
import torch

from flodl.core import TrainError
from flodl.core.device import parse_device


def parse(value, **kwargs):
    return parse_device(
        value, error=TrainError, advice="Use 'cpu'.", advice_without_cuda="Install CUDA.", **kwargs
    )


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.parametrize("value", ["cpu", "meta", torch.device("cpu")])
def test_other_kinds_of_devices_are_returned_as_they_are(value):
    assert parse(value) == torch.device(value)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("value", "index"),
    [("cuda", 1), (torch.device("cuda"), 1), ("cuda:0", 0), (0, 0), (1, 1), (torch.device("cuda", 0), 0)],
)
def test_a_cuda_device_always_has_an_index(value, index):
    assert parse(value) == torch.device("cuda", index)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("gpu", "'gpu'"), ("cuda:x", "'cuda:x'"), ("", "''"), (None, "None"), (1.5, "1.5"), (-1, "-1")],
)
def test_what_is_not_a_device_is_refused(value, shown):
    with pytest.raises(TrainError) as caught:
        parse(value)
    assert str(caught.value) == f"device={shown} is not a device. Use 'cpu'."


@pytest.mark.usefixtures("two_gpus")
def test_an_index_without_a_device_is_refused():
    with pytest.raises(TrainError) as caught:
        parse("cuda:2")
    assert str(caught.value) == "device='cuda:2': the CUDA devices of this machine are 0 to 1. Use 'cpu'."


@pytest.mark.parametrize(
    ("version", "why"), [("13.0", "finds no CUDA device"), (None, "is built without CUDA")]
)
@pytest.mark.parametrize("value", ["cuda", "cuda:1", 0, torch.device("cuda")])
def test_cuda_is_refused_where_torch_has_none(monkeypatch, version, why, value):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", version)
    with pytest.raises(TrainError) as caught:
        parse(value, label="--device 0")
    assert str(caught.value) == f"--device 0: torch {torch.__version__} {why}. Install CUDA."
