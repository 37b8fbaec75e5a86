"""Tests of sweep/exporting/."""
