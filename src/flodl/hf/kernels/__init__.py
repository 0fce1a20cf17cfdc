"""Attention kernels in Triton, for CUDA devices."""
