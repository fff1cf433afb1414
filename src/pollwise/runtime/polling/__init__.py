"""What a poll loop decides, and the loop that blocks; the loop that awaits is in `runtime.loop`."""
