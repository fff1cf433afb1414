"""The Lua scripts of a queue in Redis. Each begins with `common.lua`."""
