"""A list of whole batches that a loader would stack as samples is reported; lists of samples are not."""

import numpy as np
import pytest
import torch

from flodl import Loader

X, Y = torch.zeros(64, 8), torch.zeros(64, 1)
IDS = torch.zeros(64, dtype=torch.int64)


@pytest.mark.parametrize(
    "batches",
    [
        [(X, Y)] * 3,
        [(X, IDS)] * 20,
        [(torch.zeros(64, 1, 8, 8), IDS)],
        [[X.numpy(), np.zeros(64)]] * 3,
        [{"x": X, "y": Y}] * 3,
        [(X, Y), (X, Y), (X[:10], Y[:10])],
    ],
    ids=["regression", "classification", "images", "arrays", "dicts", "a smaller last batch"],
)
def test_a_list_of_batches_with_their_size_is_reported(batches, capsys):
    Loader(batches, 64)
    assert capsys.readouterr().err.count("each item of the list has 64 rows") == 1
    Loader(batches, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "samples",
    [
        [(IDS, IDS)] * 3,
        [(torch.zeros(64, 64), torch.zeros(64, 64))] * 3,
        [(X, torch.zeros(64, 64), IDS)] * 3,
        [(X, 1)] * 3,
        [(X, torch.tensor(1))] * 3,
        [(X[:32], Y[:32])] * 3,
        [(X, Y), (X[:32], Y[:32]), (X, Y)],
        [X] * 3,
        (X, Y),
        (torch.stack([X] * 3), torch.stack([Y] * 3)),
    ],
    ids=[
        "ids with a label each",
        "images with masks",
        "graphs with edges",
        "a number as target",
        "a scalar as target",
        "another length",
        "different lengths",
        "single tensors",
        "columns",
        "stacked sequences",
    ],
)
def test_samples_are_not_reported(samples, capsys):
    Loader(samples, 64)
    assert capsys.readouterr().err == ""


def test_images_with_as_many_channels_as_samples_in_a_batch_are_not_reported(capsys):
    Loader([(torch.zeros(3, 8, 8), torch.zeros(3, 8, 8))] * 6, 3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("own", ["transform", "collate"])
def test_items_that_the_program_changes_itself_are_not_reported(own, capsys):
    Loader([(X, Y)] * 3, 64, **{own: lambda item: item})
    assert capsys.readouterr().err == ""
