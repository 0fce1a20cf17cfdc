"""State that a run changes and that no bundle contains."""
