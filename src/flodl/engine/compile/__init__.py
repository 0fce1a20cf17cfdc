"""torch.compile for the step, in this process or in a worker process."""
