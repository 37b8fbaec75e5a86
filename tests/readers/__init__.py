"""Tests, in the shape of the source tree."""
