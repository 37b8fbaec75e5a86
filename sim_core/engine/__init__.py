"""The event cores: blocks, messages and stages; they know nothing of models or plans."""
