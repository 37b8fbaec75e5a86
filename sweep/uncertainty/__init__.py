"""How far off a simulated step may be: intervals, ties of plans, runs that would break the ties (docs/uncertainty.md)."""
