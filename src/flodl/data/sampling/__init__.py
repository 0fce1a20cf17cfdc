"""Which sample stands at which position of an epoch, and every random number that belongs to it."""
