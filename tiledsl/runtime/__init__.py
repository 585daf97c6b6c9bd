"""NVRTC, the CUDA driver, launches and torch: the only place with ctypes and torch."""
