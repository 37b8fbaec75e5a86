"""Sweeps that run every night over the inputs of the day: compared with the night before, and told when something is worse."""
