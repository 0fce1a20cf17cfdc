"""The public names of a package, read from its source: nothing is imported, torch least of all."""
