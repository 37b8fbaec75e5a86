"""Tests of sweep/executors/."""
