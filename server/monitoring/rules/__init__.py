"""Recording rules and alerts for Prometheus, from the catalogue."""
