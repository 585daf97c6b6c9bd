"""Modules under the paths that Triton's users import them from."""
