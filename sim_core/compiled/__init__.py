"""Kernels: functions over arrays that numba compiles, what it is told about them, and where their machine code is kept."""
