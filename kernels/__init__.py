"""Attention over KV pages and the operations around it, on GPUs and CPUs; knows tensors and pages only."""
