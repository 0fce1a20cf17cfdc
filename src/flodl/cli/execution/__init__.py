"""Turn a command of a manifest into a process: settings, schema, checks, plan, start."""
