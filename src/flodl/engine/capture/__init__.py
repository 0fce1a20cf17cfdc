"""CUDA graphs of whole steps."""
