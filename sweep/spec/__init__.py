"""What a user asks for: the spec and its sections, read as checked data, and the numbered set of plans that it means."""
