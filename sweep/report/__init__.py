"""A result as one page that opens from disk: ranking, trade-offs, sensitivity, what cannot run, where it comes from."""
