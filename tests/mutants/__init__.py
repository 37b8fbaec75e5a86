"""Faults planted one at a time in the sources, to see which of them the tests notice (`make mutants`)."""
