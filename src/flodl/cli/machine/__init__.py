"""Hardware detection, choosing and installing builds of torch, libtorch folders, and the diagnosis."""
