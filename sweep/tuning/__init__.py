"""The best plan after a handful of runs: what the simulation says joined with what came out (docs/tune.md)."""
