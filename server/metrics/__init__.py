"""Prometheus metrics: what the API process counts, and what the engine tells."""
