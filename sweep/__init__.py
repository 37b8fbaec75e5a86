"""Many plans, wherever there are machines: spec, numbered space, executors, store of results, ranking."""
