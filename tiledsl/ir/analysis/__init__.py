"""Analyses that return frozen results."""
