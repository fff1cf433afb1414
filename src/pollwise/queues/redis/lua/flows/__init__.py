"""The Lua functions for the links between the jobs of flows."""
