"""Anthropic's messages API, as a translation onto chat: one module per resource, and its bodies, events and errors."""
