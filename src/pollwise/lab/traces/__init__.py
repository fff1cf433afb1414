"""Traces: arrival times read from files, made from a seed, or recorded from a live queue."""
