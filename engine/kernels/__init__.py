"""Kernels of our own, where a library's are far from what the hardware gives."""
