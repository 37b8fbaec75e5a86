"""Tests of sweep/ranking/."""
