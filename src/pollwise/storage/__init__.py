"""What all stores share: connections, schemas and migrations, SQL and Lua as files, and hints
between processes. One folder per database; what is kept there is the business of `queues`,
`outbox`, `fleet` and `controller`.
"""
