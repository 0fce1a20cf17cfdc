"""Ranks that share one GPU: MPS, shares of its multiprocessors, and what ranks did."""
