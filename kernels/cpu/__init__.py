"""Attention over KV pages on CPUs: a native library for every instruction set, torch operations where it is missing."""
