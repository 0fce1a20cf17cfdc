"""What one training step does, in order: forward, loss, backward, clip, update, running means."""
