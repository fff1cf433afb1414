"""The Lua functions and scripts for the limits of kinds."""
