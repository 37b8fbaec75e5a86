"""Tests of sweep/spec/."""
