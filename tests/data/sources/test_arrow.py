"""Arrow tables and Hugging Face datasets: numbers become tensors once, other data is read per sample."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from flodl.core import DataError
from flodl.data import Loader

pa = pytest.importorskip("pyarrow")


def table(**more):
    rows = 10
    return pa.table(
        {
            "x": pa.array(np.arange(rows, dtype=np.float32)),
            "ids": pa.array([[n, n + 1, n + 2] for n in range(rows)]),
            "flag": pa.array([n % 2 == 0 for n in range(rows)]),
            **more,
        }
    )


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return pytest.importorskip("datasets")


def test_columns_of_a_table_become_tensors():
    given = Loader(table(), 4, shuffle=False)
    batch = next(iter(given))
    assert given.mode == "resident"
    assert batch["ids"].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert batch["x"].dtype == torch.float32
    assert batch["flag"].tolist() == [True, False, True, False]


def test_chunks_slices_and_fixed_lists_are_read_right():
    whole = pa.concat_tables([table(), table()]).slice(8, 4)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(range(8)), 2)
    nested = pa.array([[[1, 2], [3, 4]]] * 4)
    given = Loader(whole.append_column("pair", fixed).append_column("grid", nested), 4, shuffle=False)
    batch = next(iter(given))
    assert batch["x"].tolist() == [8, 9, 0, 1]
    assert batch["ids"].tolist() == [[8, 9, 10], [9, 10, 11], [0, 1, 2], [1, 2, 3]]
    assert batch["pair"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert batch["grid"].shape == (4, 2, 2)


def test_names_select_columns():
    with_text = table(text=pa.array(["a"] * 10))
    given = Loader(with_text, 4, names=["flag", "x"])
    assert list(next(iter(given))) == ["flag", "x"]
    assert given.mode == "resident"
    with pytest.raises(
        DataError, match=r"names has 'y', but the table has the columns \['x', 'ids', 'flag', 'text'\]"
    ):
        Loader(with_text, 4, names=["y"])


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (["a"] * 10, "column 'more' contains string, not numbers"),
        ([1, None] * 5, "column 'more' has missing values"),
        ([[1], [1, 2]] * 5, "column 'more' has lists of 1 to 2 items"),
    ],
)
def test_a_table_with_a_column_that_is_not_numeric_raises(column, why):
    with pytest.raises(DataError, match=why):
        Loader(table(more=pa.array(column)), 4)


def test_a_dataset_is_converted_once(datasets):
    data = datasets.Dataset.from_dict({"ids": [[n, n * 2] for n in range(10)], "label": list(range(10))})
    given = Loader(data, 4, shuffle=False)
    assert given.mode == "resident"
    assert next(iter(given))["ids"].tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]


def test_selected_and_shuffled_rows_are_those_of_the_dataset(datasets):
    data = datasets.Dataset.from_dict({"n": list(range(100))}).shuffle(seed=1).select(range(7))
    assert torch.cat([batch["n"] for batch in Loader(data, 4, shuffle=False)]).tolist() == data["n"][:]


def test_typed_features_and_selected_columns_are_respected(datasets):
    features = datasets.Features(
        {"grid": datasets.Array2D((2, 3), "float32"), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    data = datasets.Dataset.from_dict(
        {"grid": [[[1, 2, 3], [4, 5, 6]]] * 5, "label": [0, 1, 0, 1, 1]}, features
    )
    batch = next(iter(Loader(data, 5, shuffle=False)))
    assert batch["grid"].shape == (5, 2, 3)
    assert batch["label"].tolist() == [0, 1, 0, 1, 1]
    only = Loader(data.with_format("torch", columns=["label"]), 5)
    assert list(next(iter(only))) == ["label"]


def test_text_is_read_sample_by_sample_and_the_reason_names_the_column(datasets):
    data = datasets.Dataset.from_dict({"text": ["a", "bb", "ccc"], "label": [0, 1, 2]})
    given = Loader(data, 2, shuffle=False)
    assert given.mode == "streaming"
    assert given.reason == "column 'text' contains string, not numbers, so samples are created one by one"
    assert next(iter(given))["text"] == ["a", "bb"]
    lengths = Loader(data, 3, shuffle=False, transform=lambda row: {"length": len(row["text"])})
    assert next(iter(lengths))["length"].tolist() == [1, 2, 3]


def test_a_transform_of_the_dataset_is_kept(datasets):
    data = datasets.Dataset.from_dict({"n": list(range(6))})
    data = data.with_transform(lambda rows: {"n": [torch.tensor(n * 10) for n in rows["n"]]})
    given = Loader(data, 3, shuffle=False)
    assert given.mode == "streaming"
    assert next(iter(given))["n"].tolist() == [0, 10, 20]


def test_an_iterable_dataset_is_streamed_and_resumed_by_its_own_state(datasets):
    def make():
        data = datasets.Dataset.from_dict({"n": list(range(20))})
        return Loader(data.to_iterable_dataset(num_shards=2), 3)

    whole = torch.cat([batch["n"] for batch in make()]).tolist()
    assert whole == list(range(20))
    first = make()
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    state = first.state_dict()
    assert state["source"] is not None
    second = make()
    second.load_state_dict(state)
    assert torch.cat([batch["n"] for batch in second]).tolist() == whole[12:]


@pytest.mark.parametrize("as_iterable", [False, True])
def test_a_dict_of_datasets_raises_with_advice(datasets, as_iterable):
    data = datasets.Dataset.from_dict({"n": [1, 2]})
    splits = {"validation": data, "train": data}
    given = datasets.DatasetDict(splits)
    if as_iterable:
        given = datasets.IterableDatasetDict(
            {name: part.to_iterable_dataset() for name, part in splits.items()}
        )
    with pytest.raises(DataError, match=r"a dict of \w*Dataset\. .*for example source\['validation'\]"):
        Loader(given, 2)


@pytest.mark.parametrize("more", [{}, {"text": ["a", "b", "c"]}], ids=["numbers", "with text"])
def test_a_dataset_and_its_iterable_version_yield_the_same_batch(datasets, more):
    columns = {
        "ids": [[1, 2], [3, 4], [5, 6]],
        "grid": [[[0.5, 1.0]], [[1.5, 2.0]], [[2.5, 3.0]]],
        "flags": [[True, False], [False, False], [True, True]],
        "label": [0, 1, 1],
    }
    data = datasets.Dataset.from_dict({**columns, **more})
    (one,) = Loader(data, 3, shuffle=False)
    (other,) = Loader(data.to_iterable_dataset(), 3)
    assert list(one) == list(other) == [*columns, *more]
    for name in columns:
        assert one[name].tolist() == other[name].tolist() == columns[name]
        assert one[name].dtype == other[name].dtype
    if more:
        assert one["text"] == other["text"] == more["text"]


@pytest.mark.parametrize(
    "kind", ["bool", "uint8", "uint16", "int32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize(
    "form",
    [
        {"type": "torch"},
        {"type": "torch", "dtype": torch.float16},
        {"type": "numpy"},
        {"type": "numpy", "dtype": "f4"},
    ],
    ids=str,
)
def test_types_are_those_of_the_dataset_format(datasets, kind, form):
    data = datasets.Dataset(table(n=pa.array(np.arange(10).astype(kind)))).with_format(**form)
    given = Loader(data, 10, shuffle=False)
    assert given.mode == "resident"
    (batch,) = given
    (expected,) = DataLoader(data, 10)
    for name in ("x", "ids", "flag", "n"):
        assert batch[name].dtype == expected[name].dtype
        assert torch.equal(batch[name], expected[name])


def test_a_format_for_some_columns_keeps_the_others(datasets):
    data = datasets.Dataset.from_dict({"x": [0.5, 1.5], "y": [1, 2], "z": [2.5, 3.5]})
    (batch,) = Loader(data.with_format("torch", columns=["x"]), 2, shuffle=False, names=["x", "y"])
    assert {name: part.dtype for name, part in batch.items()} == {"x": torch.float32, "y": torch.int64}
    given = Loader(data.with_format("torch", columns=["x"], output_all_columns=True), 2, shuffle=False)
    assert given.reason.startswith("the dataset formats only some of its columns, so samples")
    (batch,) = given
    assert [batch[name].dtype for name in "xyz"] == [torch.float32, torch.int64, torch.float64]
