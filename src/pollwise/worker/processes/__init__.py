"""Handlers that run in processes of their own: `@worker.task(process=True)`.

`pool` is the worker's side, `child` the script that each process runs, `places` how a process finds
a function, and `failures` how an error travels back. Messages are JSON; nothing is unpickled.
"""
