"""Postgres for every part: connections by libpq, the schema and its migrations, errors in our
words, and hints by LISTEN and NOTIFY.
"""
