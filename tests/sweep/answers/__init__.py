"""Tests of sweep/answers/."""
