"""The line that loads completion when a shell starts, in a marked block of its startup file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from flodl.core import environment
from flodl.core.errors import SetupError
from flodl.core.files import write_atomic

BEGIN, END = "# >>> fdl completions >>>", "# <<< fdl completions <<<"

_LINES = {
    "bash": 'if command -v fdl >/dev/null 2>&1; then eval "$(fdl completions bash)"; fi',
    # compdef exists only after compinit, which many startup files call themselves.
    "zsh": "if (( $+commands[fdl] )); then\n"
    "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
    '    eval "$(fdl completions zsh)"\n'
    "fi",
    "fish": "if command -q fdl; fdl completions fish | source; end",
}
# With the empty line that separates the block from what precedes it.
_BLOCK = re.compile(
    rf"(?:(?<=\n)\r?\n)?^{re.escape(BEGIN)}[ \t]*\r?\n"
    rf"(?:(?!{re.escape(BEGIN)}).)*?^{re.escape(END)}[ \t]*(?:\r?\n|\Z)",
    re.DOTALL | re.MULTILINE,
)


def current_shell() -> str:
    """Return the user's shell; raise if completion does not support it."""
    program = environment.shell_text()
    name = os.path.basename(program).removesuffix(".exe")
    if name in _LINES:
        return name
    found = f"the shell {program!r} is not supported" if program else "SHELL is not set"
    raise SetupError(f"{found}. Pass one of them: --shell {', --shell '.join(_LINES)}")


def startup_file(shell: str) -> Path:
    """Return the file that an interactive shell reads at its start."""
    if shell == "bash":
        return Path.home() / ".bashrc"
    if shell == "zsh":
        return Path(environment.zsh_folder_text() or Path.home()) / ".zshrc"
    return Path(environment.config_root_text() or Path.home() / ".config") / "fish" / "config.fish"


def block(shell: str) -> str:
    """Return the marked block.

    >>> print(block("fish"))
    # >>> fdl completions >>>
    if command -q fdl; fdl completions fish | source; end
    # <<< fdl completions <<<
    """
    return f"{BEGIN}\n{_LINES[shell]}\n{END}"


@dataclass(frozen=True)
class Edit:
    """A startup file, and its text before and after a change."""

    path: Path
    before: str
    after: str
    own_line: int = 0  # where the user loads completion without a block, or 0

    @property
    def is_changed(self) -> bool:
        """Whether anything would be written."""
        return self.before != self.after

    def write(self) -> None:
        """Write the file atomically; a link stays a link, and permissions are kept."""
        if not self.is_changed:
            return
        try:
            write_atomic(self.path, self.after.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise SetupError(f"{self.path} cannot be written: {error.strerror}. Nothing changed.") from None


def adding(shell: str, path: Path) -> Edit:
    """Return the change that adds the block, or updates an existing one in its place."""
    text = _read(path)
    line = _own_line(shell, text)
    if line:
        return Edit(path, text, text, own_line=line)
    newline = "\r\n" if "\r\n" in text else "\n"
    new = block(shell).replace("\n", newline) + newline
    found = _BLOCK.search(text)
    if found is None:
        missing = "" if not text or text.endswith("\n") else newline
        return Edit(path, text, f"{text}{missing}{newline if text else ''}{new}")
    separator = found[0][: found[0].index(BEGIN)]
    rest = _BLOCK.sub("", text[found.end() :])  # further blocks, as after merging two files
    return Edit(path, text, f"{text[: found.start()]}{separator}{new}{rest}")


def removing(path: Path) -> Edit:
    """Return the change that removes the block."""
    text = _read(path)
    return Edit(path, text, _BLOCK.sub("", text))


def _own_line(shell: str, text: str) -> int:
    outside = _BLOCK.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(outside.splitlines(), start=1):
        if re.search(rf"\bfdl\s+completions\s+{shell}\b", line) and not line.lstrip().startswith("#"):
            return number
    return 0


def _read(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}.") from None
    outside = _BLOCK.sub("", text)
    for marker, other in ((BEGIN, END), (END, BEGIN)):
        for number, line in enumerate(text.splitlines() if marker in outside else (), start=1):
            if line.strip() == marker:
                raise SetupError(
                    f"{path}:{number}: {marker!r} has no matching {other!r}. Remove the line, or the rest of "
                    "the block; nothing was changed."
                )
    return text
