"""The API process: HTTP in, text out; it never imports torch."""
