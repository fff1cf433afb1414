"""Sinks for the runtime's events: log formats, and Prometheus metrics."""
