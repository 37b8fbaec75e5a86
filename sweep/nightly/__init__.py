"""Sweeps that run every night: compared with the night before, with a notification if something got worse."""
