"""The HTTP API of a controller: the application, its routes, and the server.

The work behind the routes is in the other folders of `controller`.
"""
