"""From a Python function to a tile graph."""
