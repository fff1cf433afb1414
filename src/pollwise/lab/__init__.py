"""The lab: what a polling policy costs, before you pay for it.

`traces` holds arrivals, `replay` runs strategies on them, and `report` compares the results. The
modules here name policies and prices, tune settings, and check published cost tables.
"""
