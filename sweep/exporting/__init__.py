"""Plans as input of training frameworks: launch flags, configuration files, plain data."""
