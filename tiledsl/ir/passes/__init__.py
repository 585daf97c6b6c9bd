"""Passes over graphs, found by name."""
