"""Errors of samples are the same whether a worker creates the samples or not."""

import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flodl.core import DataError
from flodl.data import Loader


class Samples(Dataset):
    """Samples of which number 3 is different."""

    def __init__(self, usual, third):
        self.usual, self.third = usual, third

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.third if index == 3 else self.usual


def raised(make, source, batch_size=4, **settings):
    """Return the error of reading a source, as Python shows it."""
    loader = make(source, batch_size=batch_size, **settings)
    try:
        list(loader)
    except Exception as error:
        return error
    finally:
        if isinstance(loader, Loader):
            loader.close()


ROW = torch.zeros(2)


@pytest.mark.parametrize(
    ("usual", "third"),
    [
        (ROW, None),
        ((ROW, 1), (ROW, None)),
        (ROW, torch.zeros(3)),
        (ROW, 1.5),
        (ROW, "text"),
        (1, None),
        (1, "text"),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), None),
        ({"x": ROW}, {"x": None}),
        ({"x": ROW}, {"y": ROW}),
        ((ROW, 1), (ROW,)),
        ((ROW, 1), 5),
        (object(), 1),
    ],
)
def test_samples_that_cannot_be_collated_raise_the_same_error_in_a_worker(usual, third):
    data = Samples(usual, third)
    here, there = (raised(Loader, data, shuffle=False, num_workers=count) for count in (0, 1))
    assert type(here) is type(there) is DataError
    assert str(here) == str(there)
    assert "\n" not in str(there)
    assert not hasattr(there, "__notes__")
    assert there.__cause__ is None
    assert there.__context__ is None


def test_tensors_of_different_dtypes_become_the_same_batch_in_a_worker():
    data = Samples(torch.zeros(2, dtype=torch.int64), torch.full((2,), 0.5))
    here, there = (next(iter(Loader(data, 4, shuffle=False, num_workers=count))) for count in (0, 1))
    assert here.dtype == there.dtype
    assert torch.equal(here, there)


class TwoArguments(ValueError):
    def __init__(self, path, line):
        super().__init__(f"{path}:{line} is broken")


class Failing(Dataset):
    def __init__(self, fail):
        self.fail = fail

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.fail() if index == 3 else ROW


def fail_plainly():
    raise ValueError("file 3 is empty")


def fail_with_two_arguments():
    raise TwoArguments("a.csv", 3)


def fail_on_a_key():
    return {}["label"]


def fail_on_a_file():
    return open("/nonexistent/3.png")


def fail_to_decode():
    return b"\xff".decode()


def fail_in_torch():
    return torch.zeros(2) @ torch.zeros(3)


def fail_later():
    try:
        fail_on_a_key()
    except KeyError as error:
        raise RuntimeError("sample 3 cannot be read") from error


@pytest.mark.parametrize(
    "fail",
    [
        fail_plainly,
        fail_with_two_arguments,
        fail_on_a_key,
        fail_on_a_file,
        fail_to_decode,
        fail_in_torch,
        fail_later,
    ],
)
def test_errors_of_the_dataset_keep_their_type_their_message_and_the_frames_of_the_user(fail):
    here, there = (raised(Loader, Failing(fail), shuffle=False, num_workers=count) for count in (0, 1))
    assert type(here) is type(there)
    assert str(here) == str(there)
    assert there.__notes__[:-1] == here.__notes__ == ["This is sample 3 of a Failing."]
    frames = there.__notes__[-1]
    assert frames.startswith("In a worker of the loader:\n  File ")
    assert f"in {fail.__name__}\n" in frames
    assert "/flodl/data/" not in frames
    assert "/torch/" not in frames
    assert type(here.__cause__) is type(there.__cause__)
    shown = "".join(traceback.format_exception(there))
    assert "Caught" not in shown
    assert "Original Traceback" not in shown


def test_an_error_whose_type_cannot_be_sent_arrives_as_its_base():
    class Local(ValueError):
        pass

    def fail():
        raise Local("file 3 is empty")

    error = raised(Loader, Failing(fail), shuffle=False, num_workers=1)
    assert type(error) is ValueError
    assert str(error) == "Local: file 3 is empty"
    assert error.__notes__[0] == "This is sample 3 of a Failing."


class Selfish(IterableDataset):
    def __iter__(self):
        yield from torch.zeros(20, 2)


def test_an_iterable_that_does_not_divide_itself_is_explained_in_one_sentence():
    error = raised(Loader, Selfish(), num_workers=2)
    assert type(error) is DataError
    assert str(error).startswith("the source does not divide itself among 2 workers")
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("fail", [fail_plainly, fail_on_a_key, fail_in_torch, fail_later, fail_on_a_file])
def test_errors_of_a_torch_dataloader_have_no_traceback_in_the_message(fail):
    here = raised(DataLoader, Failing(fail))
    there = raised(Loader, DataLoader(Failing(fail), batch_size=4, num_workers=1), None)
    assert type(here) is type(there)
    assert str(there) == str(here)
    assert f"in {fail.__name__}\n" in there.__notes__[-1]
    assert "/torch/" not in there.__notes__[-1]
    assert "Caught" not in "".join(traceback.format_exception(there))
