"""Decisions as arithmetic: no clock, no randomness, no I/O in here."""
