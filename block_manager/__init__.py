"""KV pages: who holds which page of memory, and why."""
