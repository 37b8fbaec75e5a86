"""A model in numbers: its description, presets, readers, parameters, and the operators of a training step (docs/models.md)."""
