"""The public names of a package, read from its source without importing it."""
