"""Tests of sweep/evaluation/."""
