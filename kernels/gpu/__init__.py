"""Triton kernels: keys and values into pages, and attention over pages."""
