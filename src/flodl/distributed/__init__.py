"""Training on several ranks of unequal speed: the decisions, without torch, sockets or threads."""

__all__: list[str] = []
