"""Two results of sweeps side by side: plans matched by their values, what changed in them, and which inputs changed."""
