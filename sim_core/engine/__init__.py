"""The event engines, for pipelines and for single ranks; they do not know models or plans."""
