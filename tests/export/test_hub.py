"""Pushing to a model hub, by the hub's own library, to a server on this machine that writes what it gets
into a folder."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import pfedsim
from pfedsim import Error


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path, list[dict[str, Any]]]]:
    """Address, folder, and what repositories were asked for."""
    folder, made = tmp_path / "hub", []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, content: object, code: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer({"error": "nothing here"}, 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Authorization") != "Bearer secret":
                self.answer({"error": "Invalid credentials"}, 401)
            elif self.path == "/api/repos/create":
                made.append(json.loads(body))
                self.answer(
                    {"url": f"http://127.0.0.1/{made[-1].get('organization', 'me')}/{made[-1]['name']}"}
                )
            elif self.path.endswith("/preupload/main"):
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                self.answer({"files": files})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.decode().splitlines()):
                    if line["key"] == "file":
                        path = folder / line["value"]["path"]
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(base64.b64decode(line["value"]["content"]))
                self.answer(
                    {
                        "commitUrl": f"http://{self.headers['Host']}/clinic/ward-3/commit/1",
                        "commitOid": "1" * 40,
                        "success": True,
                    }
                )
            else:
                self.answer({"valid": True})

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder, made
    server.shutdown()
    server.server_close()


def test_a_pushed_model_can_be_loaded_from_where_it_went(
    exported: Path, hub: tuple[str, Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("huggingface_hub")
    from pfedsim.export.hub import push

    address, folder, made = hub
    real = library.HfApi
    monkeypatch.setattr(library, "HfApi", lambda: real(endpoint=address, token="secret"))
    assert push(exported, "clinic/ward-3") == f"{address}/clinic/ward-3"
    assert (made[0]["name"], made[0]["organization"]) == ("ward-3", "clinic")
    assert made[0].get("private") is True or made[0].get("visibility") == "private"
    assert {p.name for p in folder.iterdir()} == {p.name for p in exported.iterdir()}
    state = pfedsim.load(exported).state_dict()
    assert all(t.equal(state[name]) for name, t in pfedsim.load(folder).state_dict().items())
    monkeypatch.setattr(library, "HfApi", lambda: real(endpoint=address, token="wrong"))
    with pytest.raises(Error, match="could not be pushed to 'clinic/ward-3'") as refused:
        push(exported, "clinic/ward-3")
    assert "\n" not in str(refused.value)
    with pytest.raises(Error, match="is not an exported model"):
        push(folder.parent, "clinic/ward-3")
