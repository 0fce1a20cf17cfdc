"""The well-known datasets: the real files if available, and an error for every kind of damage."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
from pathlib import Path

import pytest
import torch

from flodl.core import DataError, DataFileError
from flodl.data import Loader, cifar10, fashion_mnist, mnist, read_idx, tiny_shakespeare
from flodl.data.datasets import cifar
from flodl.data.datasets.published_files import PublishedFile, find_folders

PLACES = [os.environ.get("FLODL_DATA"), Path(__file__).parents[4] / "shared" / "data"]


def real(folder, file):
    """Return the root that has the real file, or skip the test."""
    for place in PLACES:
        if place and (Path(place) / folder / file).exists():
            return Path(place)
    return pytest.skip(f"no {folder}/{file} in FLODL_DATA or ../shared/data")


def idx(array, code=8):
    return (
        bytes([0, 0, code, array.dim()])
        + struct.pack(f">{array.dim()}I", *array.shape)
        + array.numpy().tobytes()
    )


def write_mnist(folder, images=None, labels=None):
    folder.mkdir(parents=True, exist_ok=True)
    images = torch.arange(2 * 784).to(torch.uint8).view(2, 28, 28) if images is None else images
    labels = torch.tensor([3, 9], dtype=torch.uint8) if labels is None else labels
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


def test_the_real_mnist_is_read():
    root = real("mnist", "train-images-idx3-ubyte.gz")
    images, labels = mnist(root)
    assert (images.shape, images.dtype, labels.dtype) == ((60000, 1, 28, 28), torch.float32, torch.int64)
    assert labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert abs(images.mean() - 0.1307) < 1e-4
    assert abs(images.std() - 0.3081) < 1e-4
    test_images, _ = mnist(root, train=False, dtype=torch.uint8)
    assert (test_images.shape, test_images.dtype) == ((10000, 1, 28, 28), torch.uint8)


def test_the_real_shakespeare_is_read():
    root = real("tinyshakespeare", "input.txt")
    text = tiny_shakespeare(root, 64)
    assert (text.num_tokens, len(text.vocabulary), len(text)) == (1_115_394, 65, 1_115_393 // 64)
    x, y = text[0]
    assert text.decode(x).startswith("First Citizen:\nBefore we proceed")
    assert torch.equal(x[1:], y[:-1])
    train, held_out = (tiny_shakespeare(root, 64, split=split) for split in ("train", "validation"))
    assert train.num_tokens + held_out.num_tokens == text.num_tokens
    assert train.vocabulary == held_out.vocabulary == text.vocabulary


def test_the_real_fashion_mnist_is_read():
    root = real("fashion-mnist", "t10k-images-idx3-ubyte.gz")
    images, labels = fashion_mnist(root, train=False)
    assert images.shape == (10000, 1, 28, 28)
    assert labels.bincount().tolist() == [1000] * 10


def test_the_real_cifar_is_read():
    root = real("cifar10", "data_batch_1.bin")
    images, labels = cifar10(root, dtype=torch.uint8)
    assert images.shape == (50000, 3, 32, 32)
    assert labels.bincount().tolist() == [5000] * 10
    means = images.to(torch.float64).mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465], dtype=torch.float64), atol=1e-4)


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", ""])
@pytest.mark.parametrize("packed", [True, False])
def test_files_are_found_in_the_usual_folders_compressed_or_not(tmp_path, folder, packed):
    write_mnist(tmp_path / folder)
    if not packed:
        for path in list((tmp_path / folder).glob("*.gz")):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    images, labels = mnist(tmp_path, verify=False)
    assert images.shape == (2, 1, 28, 28)
    assert images.flatten()[:3].tolist() == [0.0, pytest.approx(1 / 255), pytest.approx(2 / 255)]
    assert labels.tolist() == [3, 9]


def test_the_root_comes_from_the_environment_or_from_home(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))
    assert len(mnist(verify=False)[1]) == 2
    monkeypatch.delenv("FLODL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert find_folders(None).root == tmp_path / "me" / ".cache" / "flodl" / "data"


def test_a_missing_file_raises_with_folders_and_advice(tmp_path):
    with pytest.raises(DataFileError) as caught:
        mnist(tmp_path)
    assert str(caught.value) == (
        f"there is no train-images-idx3-ubyte.gz in {tmp_path}/mnist, {tmp_path}/MNIST/raw, {tmp_path}. "
        "Call flodl.data.mnist with download=True, or put the file there yourself (it is published at "
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz). "
        "The folder is root=, or $FLODL_DATA, or ~/.cache/flodl/data."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file: it starts with nothing"),
        (b"<html>", "is not an IDX file: it starts with 3c 68 74 6d"),
        (b"\0\0\x08\x03\0\0", "ends inside its header, after 6 bytes"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "claims 5 numbers, which take 5 bytes, but has 3. It is truncated"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"abc", "claims 4294967295 × 4294967295 × 4294967295 numbers"),
        (b"\0\0\x07\x01\0\0\0\x01a", "is not an IDX file"),
        (gzip.compress(b"abc" * 99)[:-9], "is not a complete gzip file"),
    ],
    ids=["empty", "html", "header", "short", "lying", "type", "gzip"],
)
def test_a_bad_idx_file_raises(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (0x08, torch.uint8),
        (0x09, torch.int8),
        (0x0B, torch.int16),
        (0x0C, torch.int32),
        (0x0D, torch.float32),
        (0x0E, torch.float64),
    ],
)
def test_every_type_of_the_format_is_read(tmp_path, code, dtype):
    values = torch.tensor([[1, 2], [3, 100]], dtype=dtype)
    turned = values.numpy().astype(values.numpy().dtype.newbyteorder(">"))
    (tmp_path / "f").write_bytes(bytes([0, 0, code, 2]) + struct.pack(">2I", 2, 2) + turned.tobytes())
    torch.testing.assert_close(read_idx(tmp_path / "f"), values)


def test_a_labels_file_with_the_name_of_images_raises(tmp_path):
    write_mnist(tmp_path, images=torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(
        DataFileError, match=r"has the magic number 2049, expected 2051\. Is it a different file"
    ):
        mnist(tmp_path, verify=False)


def test_files_that_do_not_belong_together_raise(tmp_path):
    write_mnist(tmp_path, labels=torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(DataFileError, match="2 images and 3 labels"):
        mnist(tmp_path, verify=False)


def test_content_with_a_wrong_hash_raises(tmp_path):
    write_mnist(tmp_path)
    with pytest.raises(
        DataFileError, match=r"is not the published file: .* expected ba891046e6505d7a….*verify=False"
    ):
        mnist(tmp_path)


def test_integer_dtypes_other_than_uint8_raise(tmp_path):
    write_mnist(tmp_path)
    with pytest.raises(DataError, match=r"dtype=torch\.int32\. Use torch.uint8 for bytes"):
        mnist(tmp_path, verify=False, dtype=torch.int32)


def records(label=1):
    return bytes([label]) + bytes(3072)


def write_cifar(folder, test):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_batch.bin").write_bytes(test)


def test_cifar_records_are_a_label_and_three_planes(tmp_path):
    image = torch.arange(3072).remainder(251).to(torch.uint8)
    first = bytes([7]) + image.numpy().tobytes()
    write_cifar(tmp_path / "cifar-10-batches-bin", first + records() * 9_999)
    images, labels = cifar10(tmp_path, train=False, verify=False, dtype=torch.uint8)
    assert torch.equal(images[0], image.view(3, 32, 32))
    assert labels[:2].tolist() == [7, 1]
    assert cifar10(tmp_path, train=False, verify=False)[0].max() <= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (records() * 9_999, "has 30726927 bytes, expected 30730000: 10000 records of 3073. It is truncated"),
        (records() * 41 + records(12) + records() * 9_958, "record 41 has label 12, expected 0 to 9"),
        (records() * 10_000, "is not the published file"),
    ],
    ids=["short", "label", "hash"],
)
def test_a_bad_cifar_file_raises(tmp_path, content, message):
    write_cifar(tmp_path, content)
    with pytest.raises(DataFileError, match=message):
        cifar10(tmp_path, train=False)


def archive(*names):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as file:
        for name in names:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 3073 * 10_000
            file.addfile(member, io.BytesIO(records() * 10_000))
    return packed.getvalue()


def test_cifar_is_extracted_from_its_archive(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive("test_batch.bin"))
    assert len(cifar10(tmp_path, train=False, verify=False)[1]) == 10_000
    with pytest.raises(DataFileError, match=r"has no data_batch_1.bin. Delete it and download it again."):
        cifar10(tmp_path, verify=False)


def test_a_broken_archive_raises(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive("test_batch.bin")[:5000])
    with pytest.raises(DataFileError, match="cannot be extracted"):
        cifar10(tmp_path, train=False)


def test_a_missing_cifar_raises_with_advice(tmp_path):
    with pytest.raises(
        DataFileError, match=r"no data_batch_1.bin \(or cifar-10-binary.tar.gz, which contains it\) in"
    ):
        cifar10(tmp_path)


def test_cifar_is_downloaded_and_extracted_on_request(tmp_path, server, monkeypatch):
    server.content = archive("test_batch.bin")
    digest = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
    small = PublishedFile("cifar-10-binary.tar.gz", (server.url,), len(server.content), digest)
    monkeypatch.setattr(cifar, "ARCHIVE", small)
    assert len(cifar10(tmp_path, train=False, verify=False, download=True)[1]) == 10_000
    assert (tmp_path / "cifar10" / "test_batch.bin").exists()


def test_the_real_mnist_is_downloaded_from_a_mirror(tmp_path, server):
    root = real("mnist", "t10k-labels-idx1-ubyte.gz")
    server.files = root / "mnist"
    images, labels = mnist(tmp_path, train=False, download=True, mirror=server.base)
    assert (len(images), len(labels)) == (10_000, 10_000)
    asked = len(server.requests)
    mnist(tmp_path, train=False, download=True, mirror=server.base)
    assert len(server.requests) == asked


def test_a_different_text_needs_verify_false(tmp_path):
    (tmp_path / "input.txt").write_text("abcab" * 10, encoding="utf-8")
    with pytest.raises(DataFileError, match="is not the published file"):
        tiny_shakespeare(tmp_path, 4)
    text = tiny_shakespeare(tmp_path, 4, verify=False, stride=1)
    assert (text.vocabulary, len(text)) == ("abc", 46)
    x, y = next(iter(Loader(text, 8)))
    assert x.shape == y.shape == (8, 4)
    with pytest.raises(DataError, match="the text has 'z', which is not in the vocabulary"):
        text.encode("az")
    with pytest.raises(DataError, match=r"split='test'\. Pass one of 'all', 'train', 'validation'"):
        tiny_shakespeare(tmp_path, 4, split="test")


def test_a_file_that_is_not_text_raises(tmp_path):
    (tmp_path / "input.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(DataFileError, match="is not text: invalid start byte at byte 3"):
        tiny_shakespeare(tmp_path, 2, verify=False)


def test_a_path_may_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "small").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    assert read_idx("~/small").tolist() == [7, 9]


def test_an_empty_root_is_not_the_working_directory():
    with pytest.raises(DataError, match=r"root='' is empty\. Pass a folder, or omit root"):
        mnist(root="")


@pytest.mark.parametrize("path", [None, 3, ["a"]])
def test_a_path_of_another_type_is_an_error(path):
    with pytest.raises(DataError, match=rf"the path is an? {type(path).__name__}. Pass the path of a file"):
        read_idx(path)
    if path is not None:  # the default folder
        with pytest.raises(DataError, match=rf"an? {type(path).__name__}. Pass the path of a folder"):
            mnist(path)
