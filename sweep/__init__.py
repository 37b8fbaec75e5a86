"""Sweeps over many plans on any number of machines: spec, plan space, executors, result store, ranking."""
