"""Tests of sweep/validation/."""
