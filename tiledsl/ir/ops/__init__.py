"""Op families, one module each, found by name."""
