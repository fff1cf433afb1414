"""Traces: arrival times read from files, generated from a seed, or recorded from a live queue."""
