"""Seconds and bytes of a plan's pieces of work."""
