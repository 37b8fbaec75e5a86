"""Tests of sweep/results/."""
