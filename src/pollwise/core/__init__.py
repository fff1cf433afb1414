"""Pure decisions: strategies, forecasts, retries, breakers, the agenda. No clock, randomness,
logging or I/O in here: everything a decision needs is an argument.
"""
