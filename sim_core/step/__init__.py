"""One training step of a plan: program for the engine, gradients, and the work once per step."""
