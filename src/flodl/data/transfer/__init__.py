"""Copying batches to a device and preparing them there ahead of time, on a side stream."""
