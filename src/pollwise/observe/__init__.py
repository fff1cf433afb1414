"""What watches the runtime: sinks for its events."""
