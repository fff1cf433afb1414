"""Limits of kinds in a SQLite file: what `claims` of limited kinds may take."""
