"""Tests of sweep/search/."""
