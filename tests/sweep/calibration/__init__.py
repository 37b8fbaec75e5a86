"""Tests of sweep/calibration/."""
