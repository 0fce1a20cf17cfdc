"""Losses that torch computes although their inputs cannot be intended."""
