"""Checks that a captured or compiled step is still valid."""
