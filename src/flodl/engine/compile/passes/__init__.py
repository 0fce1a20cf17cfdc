"""flodl's own passes over the compiled FX graph."""
