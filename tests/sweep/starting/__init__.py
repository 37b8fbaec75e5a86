"""Tests of sweep/starting/."""
