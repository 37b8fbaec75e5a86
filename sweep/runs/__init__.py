"""Measured runs: one record, one table form, one way to simulate them."""
