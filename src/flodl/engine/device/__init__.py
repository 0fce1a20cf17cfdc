"""Facts about torch and the device that do not depend on the step: memory, time, flags, streams."""
