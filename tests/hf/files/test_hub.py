"""Downloads from the hub, against a server on this machine."""

import json
import sys

import pytest

from flodl.core import HFError
from flodl.hf.files.source import open_source

FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
    "vocab.txt": b"[PAD]",
    "README.md": b"read me",
    "onnx/model.onnx": b"onnx",
}


def names(source):
    return sorted(str(path.relative_to(source.root)) for path in source.root.rglob("*") if path.is_file())


@pytest.mark.parametrize("lists_files", [True, False])
def test_only_the_files_that_are_used_are_downloaded(hub, lists_files):
    hub.files, hub.lists_files = FILES, lists_files
    source = open_source("me/tiny")
    assert names(source) == ["config.json", "model.safetensors", "vocab.txt"]
    assert (source.folder / "vocab.txt").read_bytes() == b"[PAD]"
    assert str(source) == "me/tiny (revision 0123456789abcdef0123456789abcdef01234567)"


@pytest.mark.parametrize("lists_files", [True, False])
def test_a_sentence_transformers_model_in_a_subfolder_is_found(hub, lists_files):
    modules = [
        {"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    hub.lists_files = lists_files
    hub.files = {
        "modules.json": json.dumps(modules).encode(),
        "0_Transformer/config.json": FILES["config.json"],
        "0_Transformer/pytorch_model.bin": b"weights",
        "1_Pooling/config.json": b"{}",
    }
    source = open_source("me/tiny")
    assert names(source) == sorted(hub.files)
    assert source.folder == source.root / "0_Transformer"


@pytest.mark.parametrize("lists_files", [True, False])
def test_all_shards_are_downloaded(hub, lists_files):
    hub.lists_files = lists_files
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {"a": shards[0], "b": shards[1]}}
    hub.files = {
        "config.json": FILES["config.json"],
        "model.safetensors.index.json": json.dumps(index).encode(),
        **dict.fromkeys(shards, b"weights"),
    }
    assert names(open_source("me/tiny")) == sorted(hub.files)


def test_a_second_time_the_files_come_from_the_cache(hub):
    hub.files = FILES
    open_source("me/tiny")
    hub.requests.clear()
    open_source("me/tiny")
    assert not [request for request in hub.requests if "GET /me/tiny" in request]


def test_a_revision_and_a_token_are_used(hub):
    hub.files, hub.token = FILES, "secret"
    assert open_source("me/tiny", revision="0123456789abcdef0123456789abcdef01234567", token="secret")
    with pytest.raises(HFError, match=r"'me/tiny' at revision 'v9' .* no such revision"):
        open_source("me/tiny", revision="v9", token="secret")


def test_a_private_model_without_token_says_how_to_pass_one(hub):
    hub.files, hub.token = FILES, "secret"
    with pytest.raises(HFError, match=r"'me/tiny' .*does not exist or is private \(401\).*pass token="):
        open_source("me/tiny", token=False)


def test_a_wrong_token_is_named(hub):
    hub.files, hub.token = FILES, "secret"
    with pytest.raises(HFError, match=r"'me/tiny' .*cannot be read with this token \(401\)"):
        open_source("me/tiny", token="wrong")


def test_an_unknown_model_raises_one_error(hub):
    with pytest.raises(HFError, match=r"'me/nothing' .*does not exist or is private \(404\)"):
        open_source("me/nothing")


def test_a_model_without_usable_weights_names_what_there_is(hub):
    hub.files = {"config.json": b"{}", "tf_model.h5": b""}
    with pytest.raises(HFError, match=r"has no weights: expected one of model\.safetensors.*tf_model\.h5"):
        open_source("me/tiny")


def test_an_interrupted_download_leaves_nothing_and_can_be_repeated(hub):
    hub.files, hub.cut = FILES, {"model.safetensors": 3}
    with pytest.raises(HFError, match=r"the download of model\.safetensors of .*was interrupted"):
        open_source("me/tiny")
    hub.cut = {}
    assert (open_source("me/tiny").folder / "model.safetensors").read_bytes() == b"weights"


def test_offline_mode_uses_the_cache(hub, monkeypatch):
    hub.files = FILES
    open_source("me/tiny")
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert open_source("me/tiny").file("vocab.txt")
    assert open_source("me/tiny", local_files_only=True)
    assert not hub.requests


def test_offline_mode_without_a_cached_copy_says_so(hub, monkeypatch):
    hub.files = FILES
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HFError, match=r"is not in the cache, and offline mode is on"):
        open_source("me/tiny")


def test_offline_mode_with_an_incomplete_copy_says_what_is_missing(hub):
    hub.files = FILES
    open_source("me/tiny", with_weights=False)
    with pytest.raises(HFError, match=r"in the cache has no weights"):
        open_source("me/tiny", local_files_only=True)


def test_without_a_connection_the_cache_is_used_and_reported(hub, capsys):
    hub.files = FILES
    open_source("me/tiny")
    hub.disconnect()
    assert open_source("me/tiny").file("vocab.txt")
    assert "the hub cannot be reached. Using the copy of 'me/tiny' in the cache" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_connection_and_a_cached_copy_the_error_says_so(hub):
    hub.disconnect()
    with pytest.raises(HFError, match=r"cannot be reached, and it is not in the cache"):
        open_source("me/tiny")


def test_without_huggingface_hub_the_error_gives_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HFError, match=r"pip install 'flodl\[hf\]'"):
        open_source("me/tiny")


def test_a_folder_that_does_not_exist_is_not_looked_up_on_the_hub(hub, tmp_path):
    for name in (str(tmp_path / "nothing"), "./nothing", tmp_path / "nothing", "a/b/c"):
        with pytest.raises(HFError, match=r"the folder .*nothing.* does not exist|a/b/c does not exist"):
            open_source(name)
    assert not hub.requests


@pytest.mark.slow
def test_a_program_uses_the_endpoint_of_its_environment(hub, tmp_path, warm_python, monkeypatch):
    from flodl.hf import AutoModel

    from .test_load import CONFIG

    AutoModel.from_config(CONFIG).export(tmp_path / "model")
    hub.files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    code = "from flodl.hf import AutoModel; print(AutoModel.from_pretrained('me/tiny').load_report)"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    done = warm_python.run("-c", code, cwd=tmp_path, **environment)
    assert "39 tensors loaded" in done.stdout, done.stderr
    hub.files = {}
    done = warm_python.run("-c", code, cwd=tmp_path, **environment, HF_HUB_OFFLINE="1")
    assert "39 tensors loaded" in done.stdout, done.stderr
