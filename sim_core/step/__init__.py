"""One training step of a plan: lowered, run by the engine, with what happens around the pipeline."""
