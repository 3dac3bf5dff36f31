"""Sequences on their way from the token ids of the engine to text."""
