"""The words between a completion script and a program: those typed so far, and the candidates."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from flodl.core import environment

from .scripts import SCRIPTS

_ESCAPED = re.compile(r"\\(?:([abeEfnrtv\\'\"?])|x([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{1,4}))")
_LETTERS = {
    "a": "\a",
    "b": "\b",
    "e": "\33",
    "E": "\33",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


def unquote(word: str) -> str:
    """Return the text of a word that is quoted for a shell, or only begins with a quote.

    >>> unquote(r"two\\ words"), unquote("'two wo"), unquote("$'two\\\\nlines'"), unquote("")
    ('two words', 'two wo', 'two\\nlines', '')
    """
    if word.startswith("$'"):
        return _ESCAPED.sub(_unescape, word[2:].removesuffix("'"))
    found = split_arg_string(word)
    return found[0] if found else ""


def _unescape(match: re.Match[str]) -> str:
    letter, hexadecimal, octal, code = match.groups()
    if letter:
        return _LETTERS.get(letter, letter)
    return chr(int(octal, 8) if octal else int(hexadecimal or code, 16))


def escape(text: str) -> str:
    """Escape a candidate for bash's `printf %b` and zsh's `(g::)`, on one line.

    >>> escape("a\\\\b\\nc")
    'a\\\\\\\\b\\\\nc'
    """
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    # Bytes of a file name that are not UTF-8.
    return re.sub("[\udc80-\udcff]", lambda match: f"\\0{ord(match[0]) - 0xDC00:03o}", text)


class _Completion(ShellComplete):
    """Completion with our scripts: words are arguments, and a failure offers nothing."""

    def source_vars(self) -> Any:
        return {**super().source_vars(), "prog_name": shlex.quote(self.prog_name)}

    def get_completion_args(self) -> tuple[list[str], str]:
        line, position = environment.typed_line()
        if line is not None:  # from a script of click
            words = split_arg_string(line)[1:]
            at = int(position) - 1 if position.isdecimal() else len(words)
            return words[:at], words[at] if at < len(words) else ""
        *words, current = sys.argv[1:] or [""]
        return [self.text_of(word) for word in words], unquote(current)

    def text_of(self, word: str) -> str:
        """Return the text of a complete word."""
        return unquote(word)

    def complete(self) -> str:
        try:
            args, incomplete = self.get_completion_args()
            return self.join(self.get_completions(args, incomplete))
        except (Exception, click.exceptions.Exit):  # an error would appear in the line that is being typed
            return ""

    def join(self, items: list[CompletionItem[Any]]) -> str:
        """Return all candidates in the format of the script."""
        return "\n".join(map(self.format_completion, items))


class _Bash(_Completion):
    name = "bash"
    source_template = SCRIPTS["bash"]

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{escape(str(item.value))}"


class _Zsh(_Completion):
    name = "zsh"
    source_template = SCRIPTS["zsh"]

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type}\n{escape(str(item.value))}\n{_one_line(item.help) or '_'}"


class _Fish(_Completion):
    name = "fish"
    source_template = SCRIPTS["fish"]

    def text_of(self, word: str) -> str:
        return word  # fish removes the quotes itself

    def join(self, items: list[CompletionItem[Any]]) -> str:
        return "".join(map(self.format_completion, filter(_fits_fish, items)))

    def format_completion(self, item: CompletionItem[Any]) -> str:
        description = f"\t{_one_line(item.help)}" if item.help else ""
        return f"{item.type}\0{item.value}{description}\0"


def _fits_fish(item: CompletionItem[Any]) -> bool:
    """Return whether fish can insert a word: a tab would end it, and fish does not quote a leading tilde."""
    word = str(item.value)
    expands = word.startswith("~") and item.type in ("plain", "path")
    return "\t" not in word and not expands and not re.search("[\ud800-\udfff]", word)


def _one_line(text: str | None) -> str:
    """Return a description without newlines and control characters."""
    words = " ".join((text or "").split())
    return "".join(letter for letter in words if letter.isprintable())


def install_completion() -> None:
    """Make click use these scripts and formats, in this process."""
    for completion in (_Bash, _Zsh, _Fish):
        add_completion_class(completion)


def script_for(shell: str, program: click.Command, name: str, variable: str) -> str:
    """Return the completion script of a program for a shell."""
    completion = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}[shell]
    return completion(program, {}, name, variable).source()
