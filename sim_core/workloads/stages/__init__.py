"""Stage durations of a pipeline: grammar, and the workload that they are."""
