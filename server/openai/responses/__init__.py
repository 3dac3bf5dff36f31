"""OpenAI's responses API, as a translation onto chat: bodies, items, events, and a store of what was answered."""
