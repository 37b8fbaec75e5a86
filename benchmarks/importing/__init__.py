"""Free-text tables of measured runs, read: each module one kind of cell."""
