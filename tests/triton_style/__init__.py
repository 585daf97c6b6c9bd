"""Kernels written the way Triton's users write them, in groups; every one with arguments and expected values."""
