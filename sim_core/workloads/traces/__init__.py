"""Measured steps: the rank traces of a job, replayed, and turned into a workload that can be swept."""
