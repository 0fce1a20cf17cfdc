"""Writing a folder so that it is complete or unchanged."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flodl.core import HFError
from flodl.core.files import expand_user, sync_path
from flodl.core.formats import a_type


@contextmanager
def replace_folder(
    target: str | os.PathLike[str], *, force: bool, is_replaced: Callable[[str], bool]
) -> Iterator[Path]:
    """Yield a new hidden folder, which takes the place of `target` if the block does not raise.

    A folder that is not empty is replaced only with `force`. Its entries for which `is_replaced` is false,
    such as a README, are kept.
    """
    folder = check_target(target, force=force)
    work = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir()
        yield work
        if folder.exists():
            _keep_others(folder, work, is_replaced)
        _flush_tree(work)
        _swap(work, folder)
    except OSError as error:
        raise HFError(
            f"{folder} cannot be written: {error.strerror or error}. Existing files are unchanged. Free some "
            "disk space or choose a writable folder."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_target(target: str | os.PathLike[str], *, force: bool) -> Path:
    """Return the absolute path of a folder to write, or raise if it must not be replaced."""
    if not isinstance(target, str | os.PathLike):
        raise HFError(f"the folder to write is {a_type(target)}. Pass a path.")
    if not os.fspath(target):
        raise HFError("the folder to write is ''. Pass a path; '.' is the working directory.")
    folder = Path(os.path.realpath(expand_user(target)))
    if folder.is_dir():
        if not force and any(folder.iterdir()):
            raise HFError(
                f"{target} already exists and is not empty. Choose another folder, or pass force=True "
                "(--force) to replace the model in it."
            )
    elif folder.exists():
        raise HFError(f"{target} is a file. Choose another name for the folder.")
    if folder.parent == folder:
        raise HFError(f"{target} is the root of the file system. Choose another folder.")
    return folder


def _keep_others(folder: Path, work: Path, is_replaced: Callable[[str], bool]) -> None:
    for entry in folder.iterdir():
        if is_replaced(entry.name) or (work / entry.name).exists():
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry), work / entry.name)
        elif entry.is_dir():
            shutil.copytree(entry, work / entry.name, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(entry, work / entry.name)


def _link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _swap(work: Path, folder: Path) -> None:
    mode = folder.stat().st_mode if folder.exists() else None
    if mode is not None:
        work.chmod(mode & 0o7777)
    if mode is None or not any(folder.iterdir()):
        os.rename(work, folder)
    else:
        old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.gone")
        os.rename(folder, old)
        try:
            os.rename(work, folder)
        except OSError:
            os.rename(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    sync_path(folder.parent)


def _flush_tree(folder: Path) -> None:
    for parent, _folders, files in os.walk(folder):
        for name in files:
            path = Path(parent, name)
            if not path.is_symlink():
                sync_path(path)
        sync_path(Path(parent))
