"""Tests of sweep/frameworks/."""
