"""A hub on loopback, as much of it as a download needs: model info, tree, HEAD and GET of files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has and what it was asked for; tests change it while it runs.

    `files` maps repository to path to content. `requests` holds `METHOD path` lines.
    `faults` maps a path to "cut" (connection closed half way), "flip" (one bit wrong) or "size N"
    (another size of the whole is told where a part is sent). `sent` counts the bytes of each file
    that went out; without `ranges` a part cannot be asked for.
    """

    files: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    url: str = ""

    def fetched(self) -> set[str]:
        """Paths of the files whose content was sent."""
        gets = (line.split("/resolve/") for line in self.requests if line.startswith("GET "))
        return {parts[1].split("/", 1)[1] for parts in gets if len(parts) == 2}


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub, running on a free port of the loopback."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._api("/".join(parts[2:4]), parts[4:])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._send(404, b"{}")

    def _api(self, repo: str, rest: list[str]) -> None:
        if repo not in self.hub.files:
            self._error(404, "RepoNotFound", "Repository not found")
        elif len(rest) == 2 and rest[1] not in ("main", COMMIT):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        elif rest[:1] == ["tree"]:
            self._json([self._entry(p, c) for p, c in self.hub.files[repo].items()])
        else:
            siblings = [{"rfilename": path} for path in self.hub.files[repo]]
            self._json({"id": repo, "sha": COMMIT, "siblings": siblings, "tags": []})

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
        entry["oid"] = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        if path.endswith(".safetensors"):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return entry

    def _file(self, repo: str, revision: str, path: str) -> None:
        files = self.hub.files.get(repo)
        if files is None:
            self._error(404, "RepoNotFound", "Repository not found")
        elif revision not in ("main", COMMIT):
            self._error(404, "RevisionNotFound", "no such revision")
        elif repo in self.hub.gated:
            self._error(403, "GatedRepo", f"Access to model {repo} is restricted.")
        elif path not in files:
            self._error(404, "EntryNotFound", "no such file")
        else:
            self._send_file(path, files[path])

    def _send_file(self, path: str, content: bytes) -> None:
        entry = self._entry(path, content)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{entry["oid"]}"', "Accept-Ranges": "bytes"}
        if "lfs" in entry:
            headers["X-Linked-Etag"] = f'"{entry["lfs"]["oid"]}"'
            headers["X-Linked-Size"] = str(len(content))
        fault = self.hub.faults.get(path)
        if fault == "flip":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._send_part(path, content, headers, cut=fault == "cut")

    def _send_part(self, path: str, content: bytes, headers: dict[str, str], *, cut: bool) -> None:
        status, wanted = 200, self.headers.get("Range", "")
        if wanted and self.hub.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(content)), len(content) - 1)
            fault = self.hub.faults.get(path, "")
            size = fault[5:] if fault.startswith("size ") else len(content)
            headers["Content-Range"] = f"bytes {begin}-{end}/{size}"
            status, content = 206, content[begin : end + 1]
        if self.command == "GET":
            self.hub.sent[path] = self.hub.sent.get(path, 0) + len(content)
        self._send(status, content, headers, cut=cut)

    def _error(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True
