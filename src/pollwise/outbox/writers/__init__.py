"""Writers put records on connections of sqlite3, psycopg, asyncpg, SQLAlchemy, Django and others.
`put` chooses the writer for a connection, `common` has what they share.
"""
