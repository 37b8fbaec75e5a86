"""Operator tables: grammar, and the workload that they are."""
