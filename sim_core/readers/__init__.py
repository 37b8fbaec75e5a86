"""Readers: one file a kind of input; each turns a user's file into a `Workload` and decides nothing about plans."""
