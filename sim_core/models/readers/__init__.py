"""Readers of model descriptions made for other programs."""
