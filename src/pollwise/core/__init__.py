"""Decisions as arithmetic: strategies, forecasts, retries, breakers, the agenda. No clock, no
randomness, no logging and no I/O in here: what a decision needs comes as an argument.
"""
