"""The HTTP probe: requests over kept connections, bounded answers, certificates."""
