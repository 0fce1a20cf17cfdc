"""flodl."""
