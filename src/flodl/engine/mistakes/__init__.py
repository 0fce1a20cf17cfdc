"""Misuse of a step, found at no cost per step: errors, warnings and explanations."""
