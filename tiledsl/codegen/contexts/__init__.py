"""Op to flat values, one module per op family; found by name."""
