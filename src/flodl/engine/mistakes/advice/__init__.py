"""Errors of torch in a step function, explained: what the batch was, and what to change."""
