"""Windows over tokens: shifted targets, shard boundaries, memory-mapped files."""

import numpy as np
import pytest
import torch

from flodl.core import DataError, DataFileError
from flodl.data import Loader, TokenShards


def windows(shards):
    x, y = shards.take(torch.arange(shards.num_samples))
    return x.tolist(), y.tolist()


def test_targets_are_one_token_later():
    x, y = windows(TokenShards(torch.arange(10), 3))
    assert x == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert y == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(("length", "count"), [(4, 1), (6, 1), (7, 2), (9, 2), (10, 3)])
def test_only_complete_windows_count(length, count):
    assert len(TokenShards(torch.arange(length), 3)) == count


def test_a_stride_makes_windows_overlap_or_skip():
    assert windows(TokenShards(torch.arange(6), 3, stride=1))[0] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert windows(TokenShards(torch.arange(9), 2, stride=5))[0] == [[0, 1], [5, 6]]


def test_no_window_crosses_into_the_next_shard():
    shards = TokenShards([np.arange(7), torch.arange(100, 102), np.arange(200, 208)], 3)
    assert windows(shards)[0] == [[0, 1, 2], [3, 4, 5], [200, 201, 202], [203, 204, 205]]
    assert (shards.num_tokens, shards.num_samples) == (17, 4)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("stride", [None, 2])
def test_resident_windows_are_those_from_the_file(tmp_path, dtype, stride):
    top = min(np.iinfo(dtype).max, 2**40)
    generator = np.random.default_rng(0)
    paths = []
    for number, length in enumerate((40, 3, 61)):
        paths.append(tmp_path / f"{number}.bin")
        generator.integers(0, top, length, endpoint=True).astype(dtype).tofile(paths[-1])
    shards = TokenShards(paths, 5, stride=stride, dtype=dtype)
    assert shards.mapped
    streamed, resident = (list(Loader(shards, 4, seed=1, mode=mode)) for mode in ("streaming", "resident"))
    torch.testing.assert_close(streamed, resident, rtol=0, atol=0)
    assert streamed[0][0].dtype == torch.int64


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int64"])
@pytest.mark.parametrize("count", [1, 3])
def test_num_bytes_is_the_memory_used_on_a_device(dtype, count):
    shards = TokenShards([np.zeros(1000, dtype=dtype)] * count, 8, stride=1)
    there = shards.to(torch.device("cpu"))
    held = sum(part.nbytes for part in vars(there).values() if isinstance(part, torch.Tensor))
    assert shards.num_bytes == there.num_bytes
    assert held - there.num_bytes < 200  # a few numbers per shard


def test_headers_are_skipped_and_npy_files_know_their_type(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\xff" * 8 + np.arange(10, dtype=np.int32).tobytes())
    np.save(tmp_path / "b.npy", np.arange(10, dtype=np.int16))
    of_raw = TokenShards(tmp_path / "a.bin", 3, dtype="int32", header_bytes=8)
    assert windows(of_raw) == windows(TokenShards(str(tmp_path / "b.npy"), 3))


def test_a_mapped_file_is_streamed_on_a_cpu(tmp_path):
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "t.bin")
    given = Loader(TokenShards(tmp_path / "t.bin", 4), 3, num_workers=1)
    assert given.reason == "the data (100 B) stays in memory-mapped files"
    assert sorted(torch.cat([x[:, 0] for x, _ in given]).tolist()) == list(range(0, 48, 4))
    given.close()


def test_names_and_single_windows():
    shards = TokenShards(torch.arange(9), 4)
    assert shards[-1][1].tolist() == [5, 6, 7, 8]
    with pytest.raises(IndexError, match="window 2 of 2"):
        shards[2]
    batch = next(iter(Loader(shards, 2, shuffle=False, names=("input_ids", "labels"))))
    assert batch["labels"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda at: TokenShards(at / "no.bin", 3), DataFileError, "there is no token file .*no.bin"),
        (
            lambda at: TokenShards(at / "odd.bin", 3),
            DataFileError,
            "odd.bin has 5 bytes, .* not a multiple of the size of uint16",
        ),
        (
            lambda at: TokenShards(at / "empty.bin", 3),
            DataFileError,
            "empty.bin contains no tokens: it has 0",
        ),
        (
            lambda at: TokenShards(at / "empty.bin", 3, header_bytes=8),
            DataFileError,
            "contains no tokens after 8 bytes of header",
        ),
        (lambda at: TokenShards(at, 3), DataFileError, "is a folder. Pass the files in it"),
        (lambda at: TokenShards(at / "*.bin", 3), DataFileError, "A pattern is not expanded"),
        (lambda at: TokenShards(at / "bad.npy", 3), DataFileError, "bad.npy is not a readable .npy file"),
        (
            lambda at: TokenShards(torch.arange(3), 3),
            DataError,
            "no shard has the 4 tokens of a window; the longest has 3",
        ),
        (lambda at: TokenShards(torch.zeros(9), 3), DataError, "Pass a 1-d array of integers"),
        (lambda at: TokenShards([], 3), DataError, "no shards"),
        (
            lambda at: TokenShards(torch.arange(9), 0),
            DataError,
            "seq_len=0, stride=None. Pass integers >= 1",
        ),
    ],
)
def test_wrong_shards_raise(tmp_path, make, error, message):
    (tmp_path / "odd.bin").write_bytes(b"12345")
    (tmp_path / "empty.bin").touch()
    (tmp_path / "bad.npy").write_bytes(b"not numpy at all")
    with pytest.raises(error, match=message):
        make(tmp_path)


@pytest.mark.parametrize("text", ["First Citizen:\nBefore we proceed.\n", "Zwölf Boxkämpfer jagen Viktor\t"])
@pytest.mark.parametrize("header_bytes", [0, 4])
def test_text_in_place_of_tokens_raises(tmp_path, text, header_bytes):
    (tmp_path / "input.txt").write_bytes(b"\0" * header_bytes + (text * 500).encode())
    for dtype in ("uint16", "int32"):
        with pytest.raises(DataFileError, match=r"input\.txt is text, not .* Tokenize it first"):
            TokenShards(tmp_path / "input.txt", 8, dtype=dtype, header_bytes=header_bytes)
    assert len(TokenShards(tmp_path / "input.txt", 8, dtype="uint8", header_bytes=header_bytes)) > 0


def test_tokens_that_could_be_characters_in_part_are_no_text(tmp_path):
    tokens = np.full(1000, 0x4142, dtype=np.uint16)
    tokens[900] = 7
    tokens.tofile(tmp_path / "t.bin")
    assert len(TokenShards(tmp_path / "t.bin", 9)) == 111


def test_a_path_may_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "part.bin")
    assert len(TokenShards("~/part.bin", seq_len=4)) == 2


# Small ids are frequent, as in a text.
FREQUENT = np.exp(np.random.default_rng(0).uniform(0, np.log(50257), 4096))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("uint32", "uint16"),
        ("int64", "uint16"),
        ("int64", "int32"),
        ("uint16", "uint32"),
        ("uint16", "int64"),
    ],
)
def test_a_file_whose_integers_have_another_size_is_an_error(tmp_path, written, read):
    FREQUENT.astype(written).tofile(tmp_path / "tokens.bin")
    bits = 8 * np.dtype(written).itemsize
    with pytest.raises(
        DataError, match=rf"does not look like tokens of dtype {read}.*pass dtype='uint{bits}'"
    ):
        TokenShards(tmp_path / "tokens.bin", 8, dtype=read)
    assert TokenShards(tmp_path / "tokens.bin", 8, dtype=written).num_tokens == 4096


@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [
        (np.zeros(4096), "uint16"),
        (np.arange(4096) < 1, "uint16"),  # one token and padding
        (np.random.default_rng(0).integers(0, 10_000_000, 4096), "int64"),  # items of a shop
        (np.random.default_rng(0).integers(0, 10_000_000, 4096), "uint32"),
        (np.arange(20) * 2, "uint32"),
    ],
)
def test_unusual_tokens_of_the_right_size_are_read(tmp_path, tokens, dtype):
    tokens.astype(dtype).tofile(tmp_path / "tokens.bin")
    assert TokenShards(tmp_path / "tokens.bin", 8, dtype=dtype).num_tokens == len(tokens)


def test_ids_that_no_embedding_of_the_model_has_are_reported(capsys):
    shards = TokenShards(torch.arange(100), 8)
    shards.check_model(torch.nn.Embedding(100, 4))
    shards.check_model(torch.nn.Linear(2, 2))
    assert capsys.readouterr().err == ""
    shards.check_model(torch.nn.Embedding(99, 4))
    assert "has the id 99, and the largest embedding of the model has 99 rows" in capsys.readouterr().err


@pytest.mark.parametrize("shard", [None, 3, {"a": 1}])
def test_a_shard_of_another_type_is_an_error(shard):
    with pytest.raises(DataError, match=r"a shard is an? \w+\. Pass the path of a file with tokens"):
        TokenShards([shard], 8)
