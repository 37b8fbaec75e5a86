"""The cost of a plan's work: seconds of compute and communication, bytes of memory."""
