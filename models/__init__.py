"""Decoders: real checkpoints into runnable models."""
