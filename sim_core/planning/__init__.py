"""Parallel plans: columns, legality, the split into stages, placement on nodes."""
