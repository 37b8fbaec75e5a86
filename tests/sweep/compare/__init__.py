"""Tests of sweep/compare/."""
