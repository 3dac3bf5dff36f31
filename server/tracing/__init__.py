"""OpenTelemetry spans of API requests. Imported only where they are asked for: it needs octavo[tracing]."""
