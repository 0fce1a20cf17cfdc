"""Bundles: one folder per save of a whole run."""
