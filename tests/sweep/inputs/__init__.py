"""Files that users have: logs, launch files; specimens are made up by hand in the real forms."""
