"""An S3 server that refuses all requests after a number of writes, as if its clients had been killed.

It runs in an environment of its own with moto, and prints its port. `Store` in `s3_runs.py` starts and controls it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

CONTROL = "/-/"
WRITES = ("PUT", "POST", "DELETE")
REFUSED = b"<Error><Code>AccessDenied</Code><Message>refused</Message></Error>"

StartResponse = Callable[[str, list[tuple[str, str]]], object]


class Refusing:
    """Counts writes. `/-/N` allows N more writes, `/-/all` allows all requests; both return the number so far."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._writes = 0
        self._allowed: int | None = None

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith(CONTROL):
            return self._control(path.removeprefix(CONTROL), start)
        if self._is_refused(is_write=environ["REQUEST_METHOD"] in WRITES):
            start("403 Forbidden", [("Content-Type", "application/xml"), ("Connection", "close")])
            return [REFUSED]
        return self._application(environ, start)

    def _is_refused(self, *, is_write: bool) -> bool:
        with self._lock:
            if self._allowed is not None:
                if self._allowed <= 0:
                    return True
                self._allowed -= is_write
            self._writes += is_write
            return False

    def _control(self, order: str, start: StartResponse) -> Iterable[bytes]:
        with self._lock:
            self._allowed = None if order == "all" else int(order)
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._writes).encode()]


class Silent(WSGIRequestHandler):
    """Logs no requests."""

    def log_request(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    application = Refusing(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)
    print(server.port, flush=True)
    server.serve_forever()
