"""The tables and functions of queues in Postgres, as migrations, and the statements that call them.

Begin with `0001_jobs.sql`.
"""
