"""Everything that a trial changes and restores."""
