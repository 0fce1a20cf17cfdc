"""This machine: its hardware, the builds of torch that fit it, where they are kept, the libtorch in them."""
