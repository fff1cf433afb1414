"""The executor: claims come in, handlers run, leases are renewed, settlements go out, and a stop
finishes or gives back what is held. The worker and the outbox's relay both run on it.
"""
