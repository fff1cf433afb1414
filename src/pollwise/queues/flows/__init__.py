"""Flows: jobs that wait for others of their batch. `linking` gives each its place in a put."""
