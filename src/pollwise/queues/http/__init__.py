"""A queue of a controller, over HTTP. The agent uses `client`, `websocket` and `tls` too."""
