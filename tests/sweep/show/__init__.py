"""Tests of sweep/show/."""
