"""Everything between text and token ids: no HTTP, no engine, no torch."""
