"""`fdl.yml`: found, read with lines, layered, explained, walked and carried out."""
