"""The two backends of a loader, resident and streaming, and the workers of the streaming one."""
