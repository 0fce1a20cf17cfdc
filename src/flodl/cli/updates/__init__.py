"""Whether there is a newer flodl: asked in the background once a day, and said from what is known."""
