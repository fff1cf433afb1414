"""The base of all stores: connections, schemas, migrations, SQL and Lua files, and hints between
processes. One folder per database. What is stored there is up to `queues`, `outbox`, `fleet` and
`controller`.
"""
