"""`fdl.yml` as data: find it, parse it with line numbers, merge overlays, look up commands."""
