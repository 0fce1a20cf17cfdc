"""The order of the samples in an epoch, and the random numbers of each sample."""
