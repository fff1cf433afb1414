"""The HTTP side of a controller: the ASGI application, its routes, and how requests and answers
look. The work behind the routes is in the other folders of `controller`.
"""
