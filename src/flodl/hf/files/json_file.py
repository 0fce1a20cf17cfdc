"""Reading the JSON files of a model, which nobody has checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flodl.core import HFError
from flodl.core.files import read_limited
from flodl.core.formats import a_type

MAX_BYTES = 1 << 28  # an index of weights has about 100 bytes per tensor


def read_json(path: Path) -> Any:
    """Return the value in a JSON file, or raise an error that names the file."""
    try:
        text = read_limited(path, max_bytes=MAX_BYTES).decode("utf-8-sig")
        return json.loads(text, parse_constant=_reject_constant)
    except FileNotFoundError:
        raise HFError(f"{path} does not exist. Pass a folder that contains it.") from None
    except OSError as error:
        raise HFError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        raise HFError(f"{path} is not UTF-8 text. The file is damaged: download it again.") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise HFError(
            f"{path} is not valid JSON: {reason}. The file is damaged: download it again."
        ) from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise HFError(f"{path} contains {a_type(value)}; expected a JSON object.")
    return value


def _reject_constant(name: str) -> float:
    # Python writes infinities this way, for example as the largest length of a tokenizer.
    return float(name)
