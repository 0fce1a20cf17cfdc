"""Tensors and arrays with one row per sample, in any memory layout."""

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, random_split

from flodl.core import DataError
from flodl.data import Loader

from ..small_loaders import IMAGES, LABELS, assert_same, everything, loader


@pytest.mark.parametrize(
    ("source", "names", "expected"),
    [
        ((IMAGES, LABELS), None, ("tuple", 2)),
        ([IMAGES[0]] * 4, None, ("Tensor", None)),
        (IMAGES, None, ("Tensor", None)),
        ({"x": IMAGES, "y": LABELS}, None, ("dict", ["x", "y"])),
        ((IMAGES, LABELS), ("image", "label"), ("dict", ["image", "label"])),
        (IMAGES, ["image"], ("dict", ["image"])),
        ({"x": IMAGES, "y": LABELS, "z": LABELS}, ["z", "x"], ("dict", ["z", "x"])),
        (TensorDataset(IMAGES, LABELS), None, ("tuple", 2)),
        ((IMAGES.numpy(), LABELS.numpy()), None, ("tuple", 2)),
    ],
)
def test_a_batch_has_the_structure_of_its_source(source, names, expected):
    batch = next(iter(Loader(source, 4, names=names)))
    kind, parts = expected
    assert type(batch).__name__ == kind
    if kind == "dict":
        assert list(batch) == parts
    elif kind == "tuple":
        assert len(batch) == parts


def test_a_split_of_a_tensor_dataset_is_resident_too():
    part, _ = random_split(TensorDataset(IMAGES, LABELS), [10, 16], torch.Generator().manual_seed(0))
    given = Loader(part, 4)
    assert given.mode == "resident"
    assert sorted(torch.cat([labels for _, labels in given]).tolist()) == sorted(part.indices)


def test_memory_mapped_arrays_stay_in_their_file(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    given = Loader((mapped, LABELS), 4, seed=5)
    assert (given.mode, given.reason) == ("streaming", "the data (3 KB) stays in memory-mapped files")
    assert_same(everything(given), everything(loader()))
    assert_same(everything(Loader((mapped, LABELS), 4, seed=5, mode="resident")), everything(loader()))


def reversed_rows(array):
    return array[::-1]


def reversed_columns(array):
    return array[:, ::-1]


def big_endian(array):
    return array.astype(array.dtype.newbyteorder(">"))


@pytest.mark.parametrize("mode", ["resident", "streaming"])
@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("change", [reversed_rows, reversed_columns, big_endian])
def test_arrays_that_torch_cannot_share_are_converted(change, locked, mode):
    array = change(np.arange(12, dtype=np.float32).reshape(4, 3))
    array.flags.writeable = not locked
    (batch,) = Loader(array, 4, shuffle=False, mode=mode)
    assert batch.dtype == torch.float32
    assert batch.tolist() == array.tolist()


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("change", [reversed_rows, big_endian])
def test_memory_mapped_arrays_are_converted_row_by_row(tmp_path, change, mode):
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", big_endian(array) if change is big_endian else array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    mapped = mapped if change is big_endian else change(mapped)
    given = Loader(mapped, 4, shuffle=False)
    assert (given.mode, given.reason) == ("streaming", "the data (48 B) stays in memory-mapped files")
    assert next(iter(given)).tolist() == mapped.tolist()
    assert next(iter(Loader(mapped, 4, shuffle=False, mode="resident"))).tolist() == mapped.tolist()


def test_read_only_arrays_are_not_copied():
    locked = IMAGES.numpy().copy()
    locked.flags.writeable = False
    assert_same(everything(Loader((locked, LABELS), 4, seed=5)), everything(loader()))


def test_a_batch_can_be_changed_without_changing_the_data():
    before = IMAGES.clone()
    for images, _ in loader(shuffle=False):
        images.zero_()
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_integers_keep_their_type(dtype):
    values = np.array([1, 2, np.iinfo(dtype).max], dtype=dtype)
    (batch,) = Loader(values, 3, shuffle=False)
    assert batch.numpy().dtype == dtype
    assert batch.tolist() == values.tolist()


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_dataframe_is_a_dict_of_its_columns(package):
    frame = pytest.importorskip(package).DataFrame({"a": [1, 2, 3], "b": [0.5, 1.0, 1.5]})
    (batch,) = Loader(frame, 3, shuffle=False)
    assert {name: column.tolist() for name, column in batch.items()} == {"a": [1, 2, 3], "b": [0.5, 1.0, 1.5]}
    with pytest.raises(DataError, match="column 'a' has dtype"):
        Loader(pytest.importorskip(package).DataFrame({"a": ["x", "y"]}), 2)


def test_a_subset_may_count_from_the_end():
    part = Subset(TensorDataset(LABELS), [-1, 0, -2])
    (rows,) = next(iter(Loader(part, 3, shuffle=False)))
    assert rows.tolist() == [part[at][0].item() for at in range(3)] == [25, 0, 24]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 26], "the Subset has index 26 for 26 samples"),
        ([0, -27], "the Subset has index -27 for 26 samples"),
        ([], "the Subset has no samples"),
        (LABELS > 3, "the argument of the Subset is a mask of 26 booleans"),
    ],
)
def test_a_subset_with_wrong_indices_raises(indices, message):
    with pytest.raises(DataError, match=message):
        Loader(Subset(TensorDataset(LABELS), indices), 4)


def test_data_with_autograd_history_is_an_error():
    with pytest.raises(DataError, match=r"column '0' was computed from parameters.*or pass x\.detach\(\)"):
        Loader((torch.nn.Linear(2, 3)(torch.ones(4, 2)), torch.ones(4)), 2)
    with pytest.raises(DataError, match=r"column 'x' requires a gradient.*x\.requires_grad_\(\) in the step"):
        Loader({"x": torch.ones(4, 2, requires_grad=True)}, 2)


ROWS = torch.eye(4)
WITHOUT_ROWS = {
    "coo": (lambda: ROWS.to_sparse(), r"sparse tensor \(torch.sparse_coo\).*to_dense"),
    "csr": (lambda: ROWS.to_sparse_csr(), r"sparse tensor \(torch.sparse_csr\).*to_dense"),
    "strided": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
        "nested tensor.*to_padded_tensor",
    ),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "nested tensor.*to_padded_tensor",
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8),
        r"quantized tensor \(torch.qint8\).*x.dequantize\(\).*x.int_repr\(\)",
    ),
    "masked": (lambda: np.ma.masked_array(np.ones(4), [0, 1, 0, 0]), "masked array.*1 masked values.*filled"),
}


@pytest.mark.filterwarnings("ignore:.*(prototype stage|beta state|quantize_per_tensor)")
@pytest.mark.parametrize(("make", "message"), WITHOUT_ROWS.values(), ids=list(WITHOUT_ROWS))
def test_tensors_without_dense_rows_and_masked_arrays_are_rejected(make, message):
    for source in (make(), (torch.zeros(4), make()), {"x": make()}):
        with pytest.raises(DataError, match=message):
            Loader(source, 2)
        with pytest.raises(DataError, match=message):
            Loader(source, 2, transform=lambda sample: sample)


@pytest.mark.filterwarnings("ignore:.*beta state")
def test_sparse_tensors_of_a_dataset_are_rejected_too():
    dataset = TensorDataset(ROWS.to_sparse_csr(), torch.zeros(4))
    for source in (dataset, Subset(dataset, [0, 1])):
        with pytest.raises(DataError, match="column '0' is a sparse tensor"):
            Loader(source, 2)


def test_a_masked_array_in_a_sample_is_rejected_and_one_without_masked_values_is_read():
    samples = [np.ma.masked_array([1.0, 2.0], [False, True])] * 4
    with pytest.raises(DataError, match="an array in a sample is a masked array"):
        next(iter(Loader(samples, 2)))
    assert next(iter(Loader(np.ma.masked_array(np.ones(4)), 2, shuffle=False))).tolist() == [1.0, 1.0]
