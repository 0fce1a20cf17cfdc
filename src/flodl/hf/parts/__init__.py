"""Building blocks that the families share: embeddings, attention, feed-forward, heads."""
