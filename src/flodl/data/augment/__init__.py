"""Augmentations of whole batches, and the kernel that fuses them on CUDA."""
