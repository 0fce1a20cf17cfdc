"""Files of the user that cannot be written: flodl's error, with the path and what to do."""

import os

import pytest
import torch
from torch import nn

from flodl import FlodlError, FlowBuilder, Trainer
from flodl.checkpoint import save_bundle

WRONG = {
    "folder": r"cannot write 'folder': it is a folder\. .*Pass a file in it, such as 'folder/\w+\.\w+'",
    "file/x": r"cannot write 'file/x': 'file' is a file, not a folder\. .*Choose another path",
    "": r"the path is empty\. Pass the path of a file, such as '\w+\.\w+'",
    "x\0y": r"the path 'x\\x00y' contains a NUL character\. Pass the path of a file, such as",
    "a" * 300: r"cannot write 'a{80}'… \(300 characters\): the name is too long\. .*Choose a shorter one",
    3: r"(the path is an int|written to an int|got an int)\. Pass the path",
    b"x": r"(the path is a bytes|written to a bytes|got a bytes)\. Pass the path",
}
METHODS = (
    "svg",
    "plot_html",
    "export_trends",
    "write_log",
    "plot_timings_html",
    "export_timing_trends",
    "save_checkpoint",
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("content")
    yield
    assert sorted(os.listdir()) == ["file", "folder"]
    assert not os.listdir("folder")


@pytest.fixture(scope="module")
def graph():
    model = FlowBuilder(nn.Linear(2, 2)).tag("a").build()
    model.record("loss", 1.0)
    model.collect_timings(example=torch.ones(1, 2))
    model.end_epoch()
    return model


@pytest.mark.parametrize("path", WRONG)
@pytest.mark.parametrize("method", METHODS)
def test_a_path_that_cannot_be_written_is_an_flodl_error(graph, method, path):
    expected = WRONG[path]
    if (method, path) == ("save_checkpoint", ""):
        expected = r"cannot write '\.': it is a folder"
    with pytest.raises(FlodlError, match=expected):
        getattr(graph, method)(path)


def loss(model, x):
    return model(x).square().mean()


def trainer(**options):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    return Trainer(nn.Linear(2, 1), loss, optimizer=sgd, device="cpu", monitor=False, **options)


def test_the_picture_of_a_search_is_written_or_an_error():
    found = trainer().find_lr(torch.randn(6, 2), 3)
    for path in ("file/x.svg", "x\0.svg", "a" * 300 + ".svg", "", 3):
        with pytest.raises(FlodlError, match=r"Choose|Pass the path of a file, such as 'rates.svg'"):
            found.svg(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("x\0y", r"checkpoint_dir='x\\x00y' contains a NUL character\. Pass the path of a folder"),
        ("a" * 300, r"checkpoint_dir='.*the name is too long\. Choose a shorter one"),
    ],
)
def test_a_folder_that_cannot_be_created_is_an_flodl_error(path, words):
    with pytest.raises(FlodlError, match=words):
        trainer(checkpoint_dir=path).fit(torch.randn(6, 2), epochs=1, batch_size=3)
    with pytest.raises(FlodlError, match=r"NUL character|the name is too long"):
        save_bundle(path, 1, {"model": {"x": torch.ones(1)}})
