"""The page on serving, as it is written, against a real server on this machine."""

from __future__ import annotations

import io
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pfedsim
from pfedsim.data.federation import Federation

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def test_the_page_serves_a_model(exported: Path, digits: Federation, tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    (block,) = re.findall(r"```python\n# serve\.py\n(.*?)```", PAGE, re.S)
    code = [line for line in block.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(code) <= 10
    (tmp_path / "serve.py").write_text(block)
    shutil.copytree(exported, tmp_path / "client-7")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "serve:app", "--port", str(port)],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}/predict"
        while server.poll() is None:
            try:
                httpx.get(f"http://127.0.0.1:{port}/docs")
                break
            except httpx.TransportError:
                time.sleep(0.2)
        test = digits.partition.clients[3].test[:3]
        model = pfedsim.load(exported)
        for x, right in zip(
            digits.data.x[test], model.probabilities(digits.data.x[test]).tolist(), strict=True
        ):
            answer = httpx.post(address, files={"file": png(x[0])}, timeout=60)
            assert answer.status_code == 200
            assert answer.json() == pytest.approx(dict(zip(model.classes, right, strict=True)), abs=1e-6)
        refused = httpx.post(address, files={"file": b"no picture"}, timeout=60)
        assert refused.status_code == 422
        assert "is not an image that Pillow can read" in refused.json()["detail"]
    finally:
        server.terminate()
        server.wait()
