"""How far off a simulated step may be: intervals, plans that tie, runs that would tell them apart (docs/uncertainty.md)."""
