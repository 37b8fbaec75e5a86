"""Tests of statistics in benchmarks/."""
