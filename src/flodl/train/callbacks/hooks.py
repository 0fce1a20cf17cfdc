"""What may happen beside training: objects with methods of these names, taking what they want to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
