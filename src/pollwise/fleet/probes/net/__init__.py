"""Probes of network protocols other than HTTP, and the bounded conversation they share."""
