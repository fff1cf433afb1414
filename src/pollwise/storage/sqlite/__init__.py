"""SQLite for every part: the file with its connection and migrations, the thread that makes the
calls, and hints by watching files.
"""
