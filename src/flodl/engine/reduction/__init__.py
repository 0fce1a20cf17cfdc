"""Averages the gradients of several ranks between backward and clipping."""
