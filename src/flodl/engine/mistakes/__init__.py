"""Mistakes in the use of a step, found without a cost per step: errors, warnings and explanations."""
