"""Paths that are not those of a checkpoint: folders, and files with the suffix of another format."""

from __future__ import annotations

import os
from pathlib import Path

from flodl.core import CheckpointError

from ..bundles.manifest import is_bundle, newest_folder, saved_again
from ..formats.byte_reader import PathOrStream, display_name
from ..formats.compression import UNSUPPORTED_SUFFIXES, without_compression_suffix

_TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
_OTHER_SUFFIXES = (".json", ".npy", ".npz", ".pkl", ".pickle", ".h5", ".hdf5", ".onnx", ".gguf")
_READABLE_SUFFIXES = (".fdl", ".safetensors", *_TORCH_SUFFIXES)


def check_file(path: Path) -> None:
    """Raise if a path to read is a folder, in a replaced bundle, or missing in the folder of a run.

    The error names what can be loaded.
    """
    if newer := saved_again(path.parent):
        raise CheckpointError(newer)
    if not path.is_dir():
        _check_in_run(path)
        return
    raise CheckpointError(f"cannot read {display_name(path)}: Is a directory. {_advice(path)}")


def _check_in_run(path: Path) -> None:
    """Raise if a file is missing in the folder of a run, and its last bundle has one with this name."""
    for root in (path.parent, path.parent / "bundles"):
        bundle = None if path.exists() else newest_folder(root)
        if bundle is not None and (bundle / path.name).is_file():
            raise CheckpointError(
                f"cannot read {display_name(path)}: No such file. This is a run folder, and its files "
                f"are stored in bundles. Load {str(bundle / path.name)!r} from the latest one."
            )


def _advice(folder: Path) -> str:
    if is_bundle(folder):
        return f"It is a bundle. Load its model, {_model_of(folder)!r}, or all of its parts with read_bundle."
    for root in (folder, folder / "bundles"):
        bundle = newest_folder(root)
        if bundle is not None:
            return (
                f"It is the folder of a run. Load a model in it, such as {_model_of(bundle)!r}, or all parts "
                f"of its last bundle: read_bundle(latest_bundle({str(root)!r}))."
            )
    files = sorted(name for name in _names_in(folder) if name.endswith(_READABLE_SUFFIXES))
    if files:
        return f"Pass a file in it, such as {str(folder / files[0])!r}."
    return "Pass a file that save_checkpoint wrote."


def _model_of(bundle: Path) -> str:
    parts = sorted(name for name in _names_in(bundle) if name.endswith(".fdl"))
    return str(bundle / ("model.fdl" if "model.fdl" in parts or not parts else parts[0]))


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def check_suffix(location: PathOrStream) -> None:
    """Raise if the suffix of a path stands for a file of `torch.save` or an unsupported compression."""
    if not isinstance(location, str | os.PathLike):
        return
    path = Path(without_compression_suffix(os.fspath(location)))
    if path.suffix.lower() in UNSUPPORTED_SUFFIXES:
        raise CheckpointError(
            f"{display_name(location)} has the suffix of a compression format that flodl does not write. "
            f"Write '{path.stem}.gz', '{path.stem}.zst' or '{path.stem}', and compress it afterwards."
        )
    if path.suffix.lower() in _TORCH_SUFFIXES:
        raise CheckpointError(
            f"{display_name(location)} has the suffix of a torch.save file, but this would be a safetensors "
            f"file. Write '{path.stem}.fdl' or '{path.stem}.safetensors', or use "
            f"torch.save(tensors, {path.name!r})."
        )
    if path.suffix.lower() in _OTHER_SUFFIXES:
        raise CheckpointError(
            f"{display_name(location)} has the suffix of another format, but this would be a safetensors "
            f"file. Write '{path.stem}.fdl' or '{path.stem}.safetensors'."
        )
