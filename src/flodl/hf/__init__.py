"""Hugging Face checkpoints as graphs: load, fine-tune, predict and export."""

__all__: list[str] = []
