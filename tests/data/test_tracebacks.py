"""A mistake in a dataset, a transform or a loop shows the user's frames only."""

import traceback

import pytest
import torch

from flodl import Loader


def names_of(function):
    with pytest.raises(Exception) as found:
        function()
    return [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]


def fails(*arguments):
    raise KeyError("label")


class Fails:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return fails()


def stream():
    yield torch.zeros(2)
    fails()


@pytest.mark.parametrize(
    ("loader", "frames"),
    [
        (lambda: Loader(Fails(), 4, mode="streaming"), ["__getitem__", "fails"]),
        (lambda: Loader(torch.ones(8, 2), 4, transform=fails, mode="streaming"), ["fails"]),
        (lambda: Loader([torch.ones(2)] * 8, 4, collate=fails, mode="streaming"), ["fails"]),
        (lambda: Loader(stream(), 4), ["stream", "fails"]),
    ],
    ids=["dataset", "transform", "collate", "iterable"],
)
def test_an_error_of_the_user_while_a_loader_is_read(loader, frames):
    def read():
        list(loader())

    assert names_of(read) == ["names_of", "read", *frames]


def test_a_second_loop_shows_the_line_of_the_first():
    loader = Loader(torch.ones(8, 2), 4)

    def read():
        for _ in loader:
            next(iter(loader))

    assert names_of(read) == ["names_of", "read"]


def test_wrong_arguments_show_the_line_that_created_the_loader():
    assert names_of(lambda: Loader(torch.ones(8, 2), 0)) == ["names_of", "<lambda>"]


def test_a_cursor_that_does_not_fit_shows_the_line_that_loaded_it():
    state = Loader(torch.ones(8, 2), 4).state_dict()
    assert names_of(lambda: Loader(torch.ones(9, 2), 4).load_state_dict(state)) == ["names_of", "<lambda>"]
