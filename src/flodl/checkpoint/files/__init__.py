"""Checkpoints in a single file: save, load and migrate."""
