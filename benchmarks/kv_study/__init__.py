"""What KV caching is for, measured with the engine's own parts: time, memory, quality, upkeep, leftovers."""
