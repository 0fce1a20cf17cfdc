"""Checks of how a trainer is used."""
