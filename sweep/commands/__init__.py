"""One file per command, `NAME_command.py` with the function `command`: parse, call, print."""
