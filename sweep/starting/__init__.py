"""First specs: around a model, a workload file or a job that runs."""
