"""Saving while training continues: copies of the state and the writer thread."""
