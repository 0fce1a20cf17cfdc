"""What has changed since a run was saved, in words."""
