"""Training on several devices: what runs in the ranks, and what the calling process does meanwhile."""
