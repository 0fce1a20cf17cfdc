"""The validation suite: seven models with their published recipes, solo and on several ranks."""
