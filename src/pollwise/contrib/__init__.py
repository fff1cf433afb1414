"""Pollwise inside of frameworks: a folder for each. Nothing else imports them."""
