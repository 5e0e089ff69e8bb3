"""A package registry on loopback with a few small packages, for the real npm."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PACKAGES: dict[str, dict[str, str]] = {  # name -> what it depends on
    "alpha": {"beta": "1.0.0", "@shop/gamma": "1.0.0"},
    "beta": {},
    "@shop/gamma": {"beta": "1.0.0"},
    "delta": {},
}
FILES = 60  # in each package


def _tarball(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        files = {f"lib/f{n}.js": f"module.exports = {n};\n" * 20 for n in range(FILES)}
        files["package.json"] = json.dumps({"name": name, "version": "1.0.0", "dependencies": PACKAGES[name]})
        for path, text in files.items():
            info = tarfile.TarInfo(f"package/{path}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


class Registry:
    """`url`: of the registry, until it is closed."""

    def __init__(self) -> None:
        tarballs = {name: _tarball(name) for name in PACKAGES}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/").replace("%2f", "/").replace("%2F", "/")
                if name.endswith(".tgz"):
                    body, kind = tarballs.get(name.partition("/-/")[0]), "application/octet-stream"
                else:
                    body, kind = registry.about(name, tarballs), "application/json"
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def about(self, name: str, tarballs: dict[str, bytes]) -> bytes | None:
        if name not in PACKAGES:
            return None
        digest = base64.b64encode(hashlib.sha512(tarballs[name]).digest()).decode()
        version = {
            "name": name,
            "version": "1.0.0",
            "dependencies": PACKAGES[name],
            "dist": {
                "tarball": f"{self.url}{name}/-/{name.rpartition('/')[2]}-1.0.0.tgz",
                "integrity": f"sha512-{digest}",
            },
        }
        return json.dumps({"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
