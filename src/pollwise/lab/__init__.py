"""The lab: what a polling policy costs, before and while paying for it."""
