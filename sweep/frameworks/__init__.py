"""Words of training frameworks: their arguments with our fields, how they are read, written and refused; their stacks."""
