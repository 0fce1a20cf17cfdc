"""The small program `fdl` in a folder of PATH; it starts the fdl of the active build in the user's store."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from flodl.core import environment
from flodl.core.errors import SetupError
from flodl.core.files import replace_atomic

_MARK = "written by `fdl install`"
_SH = """\
#!/bin/sh
# fdl of the active build of torch, {mark}; `fdl install --uninstall` removes this file.
home={home}
build=$(cat "$home/torch/.active" 2>/dev/null)
bin=$home/torch/$build/bin
if [ -z "$build" ] || ! [ -x "$bin/fdl" ]; then
    echo "error: $home has no active build of torch with flodl." >&2
    echo 'Run `./fdl install` in a checkout, or `python -m flodl install` with a Python that has flodl.' >&2
    exit 1
fi
# Commands of a project use the Python of the active environment, else that of the build.
[ -n "$VIRTUAL_ENV$CONDA_PREFIX" ] || PATH=$bin:$PATH
export PATH
exec "$bin/fdl" "$@"
"""
_CMD = """\
@echo off
rem fdl of the active build of torch, {mark}; `fdl install --uninstall` removes this file.
set /p build=<"{home}\\torch\\.active"
"{home}\\torch\\%build%\\Scripts\\fdl.exe" %*
"""


@dataclass(frozen=True)
class Launcher:
    """The launcher in a folder, which may not exist yet."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / ("fdl.cmd" if os.name == "nt" else "fdl")

    @property
    def exists(self) -> bool:
        """Whether the file exists and was written by `fdl install`."""
        return _MARK in self._text()

    def check_replaceable(self) -> None:
        """Raise if there is a different program with this name."""
        if os.path.lexists(self.path) and not self.exists:
            raise SetupError(
                f"{self.path} exists and was not written by `fdl install`, so it is not replaced. Move it "
                "away, pass --force, or choose a different folder with --to."
            )

    def is_current(self, home: Path) -> bool:
        """Return whether the file has the text that `write` would write."""
        return self._text() == _content(home)

    def write(self, home: Path) -> None:
        """Write the file; `home` is the user's store."""
        try:
            if self.path.is_symlink():
                self.path.unlink()  # a link is replaced, not the program that it names
            with replace_atomic(self.path) as temporary:
                temporary.write_text(_content(home), encoding="utf-8")
            self.path.chmod(0o755)
        except OSError as error:
            raise SetupError(
                f"{error.filename} cannot be written: {error.strerror}. Choose a different folder with --to."
            ) from None

    def remove(self) -> None:
        """Delete the file."""
        try:
            self.path.unlink()
        except OSError as error:
            raise SetupError(f"{self.path} cannot be deleted: {error.strerror}.") from None

    def problem(self) -> str:
        """Return why a shell would not start this launcher, with what to do, or an empty string."""
        folders = [Path(os.path.realpath(one)) for one in environment.search_path().split(os.pathsep) if one]
        if Path(os.path.realpath(self.folder)) not in folders:
            return (
                f"{self.folder} is not on PATH, so a shell does not find fdl. {_advice(self.folder)} "
                "Then start a new shell."
            )
        found = shutil.which("fdl")
        if found and os.path.realpath(found) != os.path.realpath(self.path):
            return f"a shell starts {found} instead, which comes first on PATH."
        return ""

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def default_folder() -> Path:
    """Return the folder for programs of the user."""
    return Path.home() / ".local" / "bin"


def _content(home: Path) -> str:
    if os.name == "nt":
        return _CMD.format(mark=_MARK, home=home)
    return _SH.format(mark=_MARK, home=shlex.quote(str(home)))


def _advice(folder: Path) -> str:
    if os.name == "nt":
        return f'Add it: setx PATH "%PATH%;{folder}"'
    shell = os.path.basename(environment.shell_text())
    if shell == "fish":
        return f"Run: fish_add_path {shlex.quote(str(folder))}"
    file = {"zsh": "~/.zshrc", "bash": "~/.bashrc"}.get(shell, "~/.profile")
    return f'Add this line to {file}: export PATH={shlex.quote(str(folder))}:"$PATH"'
