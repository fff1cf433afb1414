"""Postgres for every part: connections by libpq, the schema and its migrations, errors with
advice, and hints by LISTEN and NOTIFY.
"""
