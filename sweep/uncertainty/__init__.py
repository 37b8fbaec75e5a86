"""How far off a simulated step may be: intervals, plans that cannot be told apart, runs that would tell (docs/uncertainty.md)."""
