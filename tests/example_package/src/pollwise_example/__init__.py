"""A strategy, a queue, a probe and a publisher that Pollwise finds by their entry points."""
