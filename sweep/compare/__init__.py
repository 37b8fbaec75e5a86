"""Compare two results: plans matched by value, what changed in their rows, and which inputs changed."""
