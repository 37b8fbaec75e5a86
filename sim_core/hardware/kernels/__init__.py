"""Seconds of single GPU kernels by shape and precision, from published measurements (docs/kernels.md)."""
