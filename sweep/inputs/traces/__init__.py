"""Profiler traces (PyTorch, Kineto): what each rank of a job did in the recorded steps."""
