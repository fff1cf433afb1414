"""`pollwise worker`: run a worker, once, in several processes, or again whenever code changes."""
