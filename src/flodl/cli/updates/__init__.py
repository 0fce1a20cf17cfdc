"""The update check: a daily lookup in the background, and a notice when a newer flodl is known."""
