"""The frozen spec and the Python function generated from it."""
