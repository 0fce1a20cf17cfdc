"""The run directory and the bundles in it."""
