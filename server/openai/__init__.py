"""The OpenAI-style endpoints: one module per resource, and the protocol they speak."""
