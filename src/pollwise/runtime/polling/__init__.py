"""The decisions of poll loops, and the loop that blocks; the async loop is in `runtime.loop`."""
