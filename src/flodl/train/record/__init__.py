"""The record of a run: everything that can make two runs differ, as plain data."""
