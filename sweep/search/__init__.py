"""Search: the best plans of a space, proven, without simulating the others (docs/search.md)."""
