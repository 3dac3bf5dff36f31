"""Families of decoders, one file each: how their descriptions are read, and what their tensors are called."""
