"""The live page map: a page in the browser, and what the server tells it."""
