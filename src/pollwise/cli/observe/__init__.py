"""`pollwise observe …`: dashboards for Grafana and alert rules for Prometheus."""
