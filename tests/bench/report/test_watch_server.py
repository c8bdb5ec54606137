"""The server of `dfl-report --watch`: what it answers, what it refuses, and to whom."""

import http.client
import json
import socket
import threading

import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.command import main
from dfl_lightning.bench.report.watch import serving
from dfl_lightning.bench.report.watch.hosts import is_asked_for
from dfl_lightning.bench.report.watch.serving import make_server

HOSTILE = "<img src=x onerror=alert(1)>\n\udcff'\"&"


@pytest.fixture(scope="module")
def served(tmp_path_factory, make_run):
    """Serve two runs, one of them with a hostile name, without naming methods."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "a", [[0.4, 0.6], [0.5, 0.8]], config={"selection": {"class_path": "Ours"}})
    make_run(folder / HOSTILE, [[0.4, 0.6], [0.5, 0.7]], config={"selection": {"class_path": "</script><b>"}})
    (folder / "secret.txt").write_text("not for others")
    patch = pytest.MonkeyPatch()
    patch.setattr(serving, "_read", lambda collection: collection.refresh())
    server = make_server([str(folder)], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
    patch.undo()


def ask(server, path, method="GET", host=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": host or f"localhost:{server.server_port}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def ids(server):
    answer = json.loads(ask(server, "/rows")[2])
    at = answer["columns"].index("run")
    return {cells[at]: id for id, cells, _ in answer["rows"]}


def test_the_table_the_rows_and_the_page_of_picked_runs(served):
    status, headers, table = ask(served, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<h1>Runs</h1>" in table
    named = ids(served)
    assert set(named) == {"a", HOSTILE}
    status, headers, page = ask(served, f"/page?runs={','.join(named.values())}")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"2 runs, 2 methods" in page
    assert b"onerror=alert" not in page.replace(b"&lt;img src=x onerror=alert", b"")
    assert b"</script><b>" not in page
    first = json.loads(ask(served, "/rows")[2])
    known = f"after={first['version']}&parts={len(first['parts'])}"
    later = json.loads(ask(served, f"/rows?start={first['start']}&{known}")[2])
    assert later["rows"] == later["parts"] == []
    again = json.loads(ask(served, f"/rows?start=another&{known}")[2])  # the browser has known another server
    assert again["rows"] == first["rows"]
    assert again["parts"] == first["parts"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"])
def test_only_get_and_head_are_answered(served, method):
    status, headers, _ = ask(served, "/rows", method)
    assert (status, headers["Allow"], headers["Connection"]) == (405, "GET, HEAD", "close")


def test_head_has_the_headers_alone(served):
    status, headers, body = ask(served, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/../../etc/passwd",
        "/%2e%2e/secret.txt",
        "//etc/passwd",
        "/a/metrics.csv",
        "/page?runs=../secret.txt",
        "/page?runs=a",
        "/page?runs=/etc",
        "/page?runs=",
        "/page",
        "/page?runs=000000000000",
    ],
)
def test_paths_lead_nowhere(served, path):
    status, _, body = ask(served, path)
    assert status == 404
    assert b"secret" not in body
    assert b"root:" not in body


def test_too_many_and_damaged_runs_are_refused_in_a_sentence(served, tmp_path, make_run):
    status, _, body = ask(served, f"/page?runs={','.join(['0' * 12] * 501)}")
    assert (status, body) == (400, b"A page has at most 500 runs, and 501 are picked; filter them first.\n")
    run = make_run(tmp_path / "damaged", [[0.5]])
    (run / "summary.json").write_text("{")
    server = make_server([str(tmp_path)], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        status, _, body = ask(server, f"/page?runs={ids(server)['damaged']}")
        assert status == 422
        assert body.startswith(b"The page cannot be made: ")
        assert b"summary.json" in body
    finally:
        server.shutdown()
        server.server_close()


def test_other_host_names_and_other_sites_are_refused(served):
    port = served.server_port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost:1",
        f"127.0.0.1.evil.example:{port}",
        f"[::2]:{port}",
    ):
        assert ask(served, "/rows", host=host)[0] == 421, host
    for host in (f"127.0.0.1:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"):
        assert ask(served, "/rows", host=host)[0] == 200, host
    across = {"Sec_Fetch_Site": "cross-site"}
    assert ask(served, "/rows", **across, Sec_Fetch_Mode="no-cors")[0] == 403
    assert ask(served, "/", **across, Sec_Fetch_Mode="navigate")[0] == 200


def test_a_server_for_others_answers_to_its_addresses():
    assert is_asked_for("192.168.1.7:6010", "0.0.0.0", 6010)
    assert is_asked_for(f"{socket.gethostname()}:6010", "0.0.0.0", 6010)
    assert not is_asked_for("evil.example:6010", "0.0.0.0", 6010)
    assert is_asked_for("my.host", "my.host", 80)
    assert not is_asked_for(None, "127.0.0.1", 6010)


def test_wrong_options_are_refused_in_a_sentence(tmp_path, served, capsys):
    (tmp_path / "file").write_text("")
    for words, sentence in (
        (
            [str(tmp_path), "--watch", "--port", str(served.server_port)],
            f"--port {served.server_port}: the port is in use; choose",
        ),
        ([str(tmp_path), "--watch", "--port", "99999"], "--port 99999: a port is a number from 0 to 65535"),
        ([str(tmp_path), "--watch", "--host", "203.0.113.7"], "--host 203.0.113.7: not an address of this machine"),
        ([str(tmp_path / "none"), "--watch"], "none: the folder does not exist; give a folder of runs"),
        ([str(tmp_path / "file"), "--watch"], "file: this is a file; give a folder of runs"),
        ([f"mine={tmp_path}", "--watch"], "--watch names methods itself; give the folder alone"),
        ([str(tmp_path), "--watch", "--out", "x.html"], "--out is about files, and --watch writes none"),
        ([str(tmp_path), "--watch", "--figures", "pdf"], "--figures is about files, and --watch writes none"),
        ([str(tmp_path), "--port", "1"], "--port is about --watch; give that too"),
        ([str(tmp_path), "--host", "::1"], "--host is about --watch; give that too"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert sentence in " ".join(error.split())
        assert "Traceback" not in error


def test_a_warning_comes_before_others_can_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serving.WatchServer, "serve_forever", lambda self: None)
    monkeypatch.setattr(serving, "_read", lambda collection: None)
    for host in ("127.0.0.1", "0.0.0.0"):
        assert main([str(tmp_path), "--watch", "--port", "0", "--host", host]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"table of runs: http://{host}:")
        assert ("without a password" in " ".join(err.split())) == (host == "0.0.0.0")
