"""From a machine graph to CUDA C++ text."""
