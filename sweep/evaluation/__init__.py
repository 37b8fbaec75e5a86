"""From a spec to rows: prepared once, then evaluated slice by slice; this is what a worker imports."""
