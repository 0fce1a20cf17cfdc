"""Training on several ranks of unequal speed: who trains what, when ranks meet, and the processes."""

__all__: list[str] = []
