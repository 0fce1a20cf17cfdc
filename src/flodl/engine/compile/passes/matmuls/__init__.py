"""Graph passes that rewrite matmuls, or make matmuls of other operations."""
