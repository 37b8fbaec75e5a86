"""Files that users have: logs of training runs, launch files, profiler traces. Recognised by content, read as plain data."""
