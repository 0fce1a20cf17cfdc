"""The files of a model: finding, reading, writing and verifying them."""
