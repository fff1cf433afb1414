"""Health for orchestrators: `/livez`, `/readyz` and messages to systemd, made from events."""
