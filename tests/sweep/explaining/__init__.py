"""Tests of sweep/explaining/."""
