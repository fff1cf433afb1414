"""A shop with one lamp, whose price is another one each time somebody looks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PRICES = ["129.00", "129.00", "119.00", "95.00", "95.00", "125.00"]
PAGE = "<html><body><h1>Lamp</h1><p class=price>now {} EUR</p></body></html>"


class Shop(BaseHTTPRequestHandler):
    looks = 0

    def do_GET(self) -> None:
        body = PAGE.format(PRICES[min(Shop.looks, len(PRICES) - 1)]).encode()
        Shop.looks += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def open_shop(port: int = 0) -> Iterator[str]:
    """Serve the shop in a thread during the block; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Shop)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
