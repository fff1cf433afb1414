"""HTTP probes: requests over kept connections, bounded answers, certificates."""
