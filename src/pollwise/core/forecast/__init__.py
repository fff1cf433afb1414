"""Forecasts from what polls found: arrivals for `Worth`, and change rates for fleets."""
