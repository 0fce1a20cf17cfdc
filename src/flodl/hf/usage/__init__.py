"""Advice for calls with the wrong arguments."""
