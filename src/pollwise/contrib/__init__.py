"""Pollwise in web frameworks: a folder for each. No other part of Pollwise imports them."""
