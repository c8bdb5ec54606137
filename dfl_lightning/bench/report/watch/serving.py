"""`dfl-report FOLDER --watch`: serve the table of runs until it is stopped."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from dfl_lightning.bench.report.watch.collection import Collection
from dfl_lightning.bench.report.watch.hosts import LOOPBACK, is_loopback
from dfl_lightning.bench.report.watch.server import WatchServer
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.garbage_collection import without_garbage_collection

PORT = 6010
"""Default port."""


def watch(folders: Sequence[str], host: str = LOOPBACK, port: int = PORT) -> None:
    """Serve a table of all runs below some folders, until the process is stopped.

    Args:
        folders: the folders, which may still be empty.
        host: address to listen on; any other than the loopback is open to other machines, and a warning says so.
        port: port to listen on; 0: any that is free.

    Raises:
        UserError: a folder does not exist, the port is in use, or the host is not an address of this machine.
    """
    server = make_server(folders, host, port)
    shown = f"[{host}]" if ":" in host else host
    if not is_loopback(host):
        print(
            f"warning: --host {host}: every machine that reaches port {server.server_port} of this one can read all "
            f"runs below {', '.join(map(str, folders))}, without a password; leave --host out to keep them here",
            file=sys.stderr,
            flush=True,
        )
    print(f"table of runs: http://{shown}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    with server:
        server.serve_forever()


def make_server(folders: Sequence[str], host: str = LOOPBACK, port: int = PORT) -> WatchServer:
    """Make the server, which listens already, and begin to read the runs; see `watch`."""
    for folder in folders:
        if not Path(folder).is_dir():
            word = "this is a file" if Path(folder).exists() else "the folder does not exist"
            raise UserError(f"{folder}: {word}; give a folder of runs, as in runs")
    collection = Collection(folders)
    reading = threading.Thread(target=_read, args=[collection], daemon=True)
    try:
        server = WatchServer((host, port), collection, table_page(), _LazyPages())
    except OverflowError:
        raise UserError(f"--port {port}: a port is a number from 0 to 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"--port {port}: the port is in use; choose another one, or 0 for any free one") from None
        if error.errno == errno.EACCES:
            raise UserError(f"--port {port}: this port needs the rights of root; choose one from 1024") from None
        raise UserError(f"--host {host}: not an address of this machine ({error.strerror}); leave --host out") from None
    reading.start()
    return server


class _LazyPages:
    """Function that makes pages, and imports what draws them when it is first called, since that takes a second."""

    def __call__(self, folders: Sequence[str]) -> bytes:
        if not hasattr(self, "_maker"):
            from dfl_lightning.bench.report.watch.picked import PageMaker

            self._maker = PageMaker()
        return self._maker.make(folders)


def _read(collection: Collection) -> None:
    """Read all runs and then, when a browser has shown them, name their methods, for which torch has to be imported."""
    with without_garbage_collection():
        collection.refresh()
    collection.answered.wait()
    from dfl_lightning.bench.report.watch.names import naming

    collection.name_methods(naming(collection.parts))


def table_page() -> bytes:
    """Write the page with the table of runs, without the runs."""
    from dfl_lightning.bench.report.look.theme import variables

    read = files(__package__).joinpath
    text = read("watch.html").read_text(encoding="utf-8")
    style = variables() + read("watch.css").read_text(encoding="utf-8")
    script = "".join(read(name).read_text(encoding="utf-8") for name in ("table.js", "watch.js"))
    return text.replace("/* style */", style).replace("/* script */", script).encode()
