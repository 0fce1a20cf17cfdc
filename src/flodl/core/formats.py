"""Formatting durations, sizes, counts, metric values and names of types for people to read."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

# Names that begin with the sound of a vowel: also those whose first letter is spoken, as in RNN.
_VOWEL = re.compile(r"[AEIaeio]|O(?!ne)|U(?![A-Z]|ni|se)|u(?!ni|se|int)|[FHLMNRSX](?=[A-Z\d])|ndarray")


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units.

    >>> [format_duration(s) for s in (0.042, 1.0, 1.5, 90, 3661, -1)]
    ['42ms', '1s', '1.5s', '1m 30s', '1h 01m', '—']
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "—"
    if seconds < 1:
        return f"{int(seconds * 1000)}ms"
    if seconds < 60:
        tenths = int(seconds * 10)
        return f"{tenths // 10}s" if tenths % 10 == 0 else f"{tenths / 10:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def format_bytes(count: float) -> str:
    """Format a size in bytes with powers of 1024.

    >>> [format_bytes(n) for n in (512, 512_000, 104_857_600, 2_254_857_830)]
    ['512 B', '500 KB', '100 MB', '2.1 GB']
    """
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{count:.0f} B"


def format_metric(value: float) -> str:
    """Format a metric with its significant digits.

    >>> [format_metric(v) for v in (0, 0.0001, 0.5, 99.5, 1234.5678, float("nan"))]
    ['0', '1.00e-04', '0.5000', '99.5000', '1234.57', 'nan']
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size < 0.001:
        return f"{value:.2e}"
    return f"{value:.4f}" if size < 100 else f"{value:.2f}"


def format_count(count: int) -> str:
    """Format a number of parameters.

    >>> [format_count(n) for n in (12, 12_300, 4_560_000)]
    ['12', '12.3K', '4.6M']
    """
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def counted(count: int, noun: str) -> str:
    """Format a number of things.

    >>> counted(1, "epoch"), counted(3, "epoch"), counted(2, "batch")
    ('1 epoch', '3 epochs', '2 batches')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'tch', 'x')) else 's'}"


def with_article(noun: str) -> str:
    """Return a noun, such as the name of a type, after "a" or "an".

    >>> [with_article(name) for name in ("list", "int", "ExponentialLR", "SGD", "Sequential", "UNet")]
    ['a list', 'an int', 'an ExponentialLR', 'an SGD', 'a Sequential', 'a UNet']
    """
    return f"{'an' if _VOWEL.match(noun) else 'a'} {noun}"


def a_type(value: object) -> str:
    """Return the name of the type of a value after "a" or "an".

    >>> a_type([]), a_type(3)
    ('a list', 'an int')
    """
    return with_article(type(value).__name__)


def shell_word(word: str | Path) -> str:
    """Quote a path or a name for a command that a user can copy into a shell.

    >>> shell_word("runs/1"), shell_word("my runs")
    ('runs/1', "'my runs'")
    """
    return shlex.quote(str(word))
