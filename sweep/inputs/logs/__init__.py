"""Logs of training runs, a module for each family of frameworks; `sweep/inputs/log.py` puts what they find together."""
