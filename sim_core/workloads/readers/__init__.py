"""Readers of input files, one per format."""
