"""The queues of the store over HTTP: the server side of `http://` queue URLs."""
