"""What a function or an object consists of, as plain data: its code, its settings, and what it reads."""

from .arrays import content_hash
from .describer import Contents
from .files import file_text
from .origin import is_own_file, is_user_file

__all__ = ["Contents", "content_hash", "file_text", "is_own_file", "is_user_file"]
