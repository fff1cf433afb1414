"""Redis and Valkey for every part: connections, Lua scripts, and hints by pub/sub."""
