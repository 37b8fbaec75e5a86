"""A user's own measurements made into numbers of a hardware file."""
