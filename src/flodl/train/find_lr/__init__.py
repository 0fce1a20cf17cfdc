"""A search for the learning rate: train a copy with a rising rate, and look where the loss falls."""
