"""A dataset that reads files while it is used is described by what is in them."""

import shutil

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from flodl.data import Loader, describe_data


class Lazy(Dataset):
    """Reads a row of a file for each sample."""

    def __init__(self, path, **others):
        self.path = path
        self.__dict__.update(others)

    def __getitem__(self, index):
        return np.load(self.path, mmap_mode="r")[index]

    def __len__(self):
        return 8


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    np.save("d.npy", np.zeros((8, 3), "float32"))
    return tmp_path


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda data: data,
        lambda data: Subset(data, [1, 0]),
        lambda data: ConcatDataset([data, data]),
        lambda data: DataLoader(data, 4),
    ],
)
def test_a_file_that_is_replaced_changes_the_description(folder, wrapped):
    data = wrapped(Lazy("d.npy"))
    before = describe_data(data)
    np.save("d.npy", np.ones((8, 3), "float32"))
    after = describe_data(data)
    assert before["files"] != after["files"]
    assert {**before, "files": 0} == {**after, "files": 0}


def test_a_loader_describes_the_files_of_its_dataset(folder):
    assert Loader(Lazy("d.npy"), 4).contents["files"] == describe_data(Lazy("d.npy"))["files"]


def test_a_copied_project_has_the_same_description(folder, monkeypatch):
    before = describe_data(Lazy("d.npy"))
    shutil.copytree("../project", folder / "copy", copy_function=shutil.copy)
    monkeypatch.chdir(folder / "copy")
    assert describe_data(Lazy("d.npy")) == before
    assert list(before["files"]) == ["path"]


def test_a_path_has_the_description_of_its_text(folder):
    assert describe_data(Lazy(folder / "project/d.npy"))["files"] == describe_data(Lazy("d.npy"))["files"]


def test_a_dataset_without_files_mentions_none(folder):
    for path in ("train", "..", "", None, ["d.npy"]):
        assert "files" not in describe_data(Lazy(path))


def test_at_most_eight_files_are_read_and_lists_of_paths_are_not(folder):
    others = {f"path{number}": "d.npy" for number in range(20)}
    assert len(describe_data(Lazy("d.npy", **others))["files"]) == 8
    data = Lazy("d.npy", images=["d.npy"] * 1_000_000)
    without = Lazy("d.npy")
    assert describe_data(data)["files"] == describe_data(without)["files"]


def test_a_file_that_the_dataset_chooses_while_it_is_used_is_its_state(folder):
    class Sharded(Lazy):
        def __getitem__(self, index):
            self.current = "d.npy"
            return super().__getitem__(index)

    data = Sharded("d.npy")
    before = describe_data(data)
    data[0]
    assert describe_data(data)["files"] == before["files"]


def test_the_file_of_a_secret_is_not_read(folder):
    assert list(describe_data(Lazy("d.npy", token="d.npy", api_key="d.npy"))["files"]) == ["path"]
