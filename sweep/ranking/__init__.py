"""Which rows are the best: queries over results, the order of plans, and how sure it is."""
