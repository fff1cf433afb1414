"""A queue of a controller, over HTTP. `client` and `tls` also carry the agent's requests."""
