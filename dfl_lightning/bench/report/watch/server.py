"""The server of the table of runs: it answers GET and HEAD, and has no way to change anything."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dfl_lightning.bench.report.watch.collection import Collection
from dfl_lightning.bench.report.watch.hosts import is_asked_for, is_of_another_site
from dfl_lightning.utils.errors import UserError

MOST_PICKED = 500
"""Largest number of runs of a page."""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{_POLICY}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ID = re.compile(r"[0-9a-f]{12,64}")


_PATIENCE = 1.5
"""Seconds after which a browser gets the rows that have been read so far."""


class WatchServer(ThreadingHTTPServer):
    """Server of a collection of runs.

    Args:
        address: host and port to listen on; port 0: any that is free.
        collection: the runs.
        table: the page with the table.
        make_page: function that makes the page of some run folders.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        collection: Collection,
        table: bytes,
        make_page: Callable[[list[str]], bytes],
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.collection, self.table, self.make_page = collection, table, make_page
        self.making = threading.Lock()
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a bug in a line; a browser that has left is none."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"dfl-report: a bug of dfl_lightning: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    """Answer to one browser."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "dfl-report", ""
    timeout = 60
    server: WatchServer

    def do_GET(self) -> None:
        """Answer a request."""
        if not is_asked_for(self.headers.get("Host"), str(self.server.server_address[0]), self.server.server_port):
            self._refuse(421, "This server answers only to its own address; open the one that dfl-report has printed.")
            return
        if is_of_another_site({name: self.headers.get(name, "") for name in ("Sec-Fetch-Site", "Sec-Fetch-Mode")}):
            self._refuse(403, "This server does not answer to pages of other sites.")
            return
        address = urlsplit(self.path)
        words = parse_qs(address.query)
        if address.path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.table)
        elif address.path == "/rows":
            self._send_rows(words)
        elif address.path == "/page":
            self._send_page(",".join(words.get("runs", [])).split(","))
        else:
            self._refuse(404, "This address has no page; the table of runs is at /.")

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method
            return self._refuse_method
        raise AttributeError(name)

    def _refuse_method(self) -> None:
        self._refuse(405, "Only GET and HEAD are answered: nothing can be changed here.", {"Allow": "GET, HEAD"})

    def _send_rows(self, words: dict[str, list[str]]) -> None:
        """Send the rows that have changed since the version which the browser has."""
        collection = self.server.collection
        if not collection.is_busy:
            collection.refresh()
        is_known = words.get("start", [""])[0] == collection.start
        version, parts = (_count(words.get(name, ["0"])[0]) if is_known else 0 for name in ("after", "parts"))
        changes = collection.since(version, parts, patience=_PATIENCE)
        self._send(200, "application/json", json.dumps(changes, separators=(",", ":"), allow_nan=False).encode())

    def _send_page(self, ids: list[str]) -> None:
        """Send the page of the runs that the reader has picked."""
        if len(ids) > MOST_PICKED:
            self._refuse(400, f"A page has at most {MOST_PICKED} runs, and {len(ids)} are picked; filter them first.")
            return
        folders = [self.server.collection.folder_of(id) if _ID.fullmatch(id) else None for id in ids]
        if None in folders:
            self._refuse(404, "A picked run has left the folder; pick again in the table of runs, at /.")
            return
        try:
            with self.server.making:
                text = self.server.make_page([folder for folder in folders if folder is not None])
        except UserError as error:
            self._refuse(422, f"The page cannot be made: {error}")
            return
        self._send(200, "text/html; charset=utf-8", text)

    def _refuse(self, code: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.close_connection = True  # a body that was sent is not read
        content = f"{sentence}\n".encode("utf-8", "replace")
        self._send(code, "text/plain; charset=utf-8", content, {**(headers or {}), "Connection": "close"})

    def _send(self, code: int, kind: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing of each request."""


def _count(text: str) -> int:
    """Read a number of an address; other texts are 0."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else 0
