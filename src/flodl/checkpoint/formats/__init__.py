"""File formats: safetensors, FDLC and torch.save, with compression and checksums."""
