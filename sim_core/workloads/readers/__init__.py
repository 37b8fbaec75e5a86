"""Readers: one kind of input file each; what a file says, nothing decided about plans."""
