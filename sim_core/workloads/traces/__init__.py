"""Measured steps: the rank traces of a job, replayed as they were recorded, and turned into a workload that can be swept."""
