"""Tests of sweep/report/."""
