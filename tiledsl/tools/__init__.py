"""Modules under the paths that Triton's users import them from."""

from tiledsl.tools import tensor_descriptor

__all__ = ["tensor_descriptor"]
