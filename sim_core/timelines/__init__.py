"""The events of one plan's step: blocks with their parts, waits, messages and buckets beside them."""
