"""What can make two runs differ, as plain data: settings, optimizer, model, code and machine."""
