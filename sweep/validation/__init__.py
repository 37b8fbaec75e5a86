"""Measured training runs, simulated from what their rows state, and how far off we are."""
