"""Reads damaged and made-up data files, and runs made-up configurations: each is read or refused with one sentence.

    python benchmarks/fuzz.py --files 1000 --configurations 1000 --out benchmarks/fuzz.json

Every case is drawn from the seed and its number alone. A file is a valid one of every format that pfedsim reads, with
one to four mutations. A configuration is a TOML file with random settings, in part with mutated text; one that is
accepted runs on 60 samples, with at most two rounds, epochs and workers. Any exception other than pfedsim's own,
and any case that takes longer than a minute, counts as a traceback and is listed."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import resource
import signal
import string
import tarfile
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from PIL import Image
from safetensors.numpy import save

from pfedsim.data import own, partition
from pfedsim.data.fetch import unpack
from pfedsim.data.readers import folders, idx, npz, tables, torch_file
from pfedsim.errors import Error
from pfedsim.methods import METHODS
from pfedsim.models import pretrained
from pfedsim.runs import config as configs
from pfedsim.runs.execute import execute

SECONDS = 60  # for one case
MEMORY = "512M"
NASTY = [
    "\x1b[31mred\x1b[0m",
    "=1+1",
    "@SUM(A1)",
    "<b>x</b>",
    "$x^$",
    "a|b",
    "a\nb",
    "\u202eabc",
    "é",
    "\\input{x}",
]
PICTURES = ("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm")


class Slow(BaseException):
    """A case took too long. Not an Exception, which readers turn into sentences."""


def _slow(*_: Any) -> None:
    raise Slow


# files: name -> (how its valid content is made, how it is read)


def _npz(rng: random.Random) -> bytes:
    draw, count = np.random.default_rng(rng.randrange(2**32)), rng.choice([1, 20, 60])
    shape = rng.choice([(8, 8), (3, 8, 8), (8, 8, 3), (6, 20), (5,), (1,)])
    kind = rng.choice(["uint8", "float32", "float64", "int64", "bool", "float16"])
    arrays = {"x": (draw.random((count, *shape)) * 255).astype(kind), "y": draw.integers(0, 3, count)}
    if rng.random() < 0.3:
        arrays["y"] = np.array(NASTY)[draw.integers(0, len(NASTY), count)]
    if rng.random() < 0.3:
        arrays["client"] = np.array(NASTY)[draw.integers(0, 3, count)]
    if rng.random() < 0.2:
        arrays |= {"mean": draw.random(shape[0]), "std": draw.random(shape[0])}
    if rng.random() < 0.2:
        arrays["classes"] = np.array(NASTY[:3])
    if rng.random() < 0.1:
        arrays[rng.choice(["x", "y"])] = draw.random(rng.choice([(), (0,), (2, 0), (3, 3)]))
    file = io.BytesIO()
    rng.choice([np.savez, np.savez_compressed])(file, **arrays)
    return _huge(file.getvalue(), rng) if rng.random() < 0.1 else file.getvalue()


def _huge(content: bytes, rng: random.Random) -> bytes:
    """The same .npz, with an array that claims to have many more samples than there are bytes."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            text = old.read(name)
            if name == "x.npy":
                text = text.replace(
                    b"'shape': (", f"'shape': ({rng.choice([10**6, 10**12, -1])}, ".encode(), 1
                )
            new.writestr(name, text)
    return made.getvalue()


def _csv(rng: random.Random) -> bytes:
    names = ["label", "client", *(rng.choice([f"c{k}", f"c{k}{rng.choice(NASTY)}"]) for k in range(4))]
    cells = ["1", "-2.5", "1e300", "nan", "", "?", "inf", "x", '"', "1,5", "0x10", "9" * 400, *NASTY]
    rows = [names]
    for k in range(rng.choice([0, 1, 30])):
        row = [rng.choice("abc"), rng.choice("uv"), *(f"{rng.gauss(0, 1)}" for _ in range(4))]
        if rng.random() < 0.02:
            row[rng.randrange(6)] = rng.choice(cells)
        rows.append(row[: rng.choice([5, 6])] if rng.random() < 0.01 * (k > 0) else row)
    return "\n".join(",".join(row) for row in rows).encode()


def _parquet(rng: random.Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    columns = {"label": [rng.choice("ab") for _ in range(20)], "a": [rng.random() for _ in range(20)]}
    parquet.write_table(pyarrow.table({**columns, rng.choice(["client", "b"]): list(range(20))}), file)
    return file.getvalue()


def _picture(kind: str) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        file, mode = io.BytesIO(), rng.choice(["L", "RGB"])
        Image.effect_noise((rng.choice([1, 16]), 16), 60).convert(mode).save(file, kind)
        return file.getvalue()

    return make


def _idx(rng: random.Random) -> bytes:
    sides = rng.choice([(5, 4, 4), (0, 28, 28), (2**31, 28, 28), (2**32 - 1,) * 3])
    body = os.urandom(0) + bytes(range(80))
    content = b"\0\0\x08\x03" + b"".join(side.to_bytes(4, "big") for side in sides) + body
    return gzip.compress(content)


def _torch(rng: random.Random) -> bytes:
    file = io.BytesIO()
    tensors = {"a.weight": torch.ones(3, 4), "b": torch.zeros(()).expand(rng.choice([2, 10**10]))}
    torch.save(tensors, file, _use_new_zipfile_serialization=rng.random() < 0.5)
    return file.getvalue()


def _tensors(rng: random.Random) -> bytes:
    return save({"a.weight": np.ones((3, 4), np.float32), "b": np.zeros(rng.choice([0, 5]), np.float16)})


def _archive(kind: str) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        file = io.BytesIO()
        names = ["a/1.png", "b.txt", rng.choice(["../out", "/abs", "a\\..\\..\\b", "c", "é/\x1b"])]
        if kind == "zip":
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
                for name in names:
                    packed.writestr(name, bytes(rng.choice([10, 10**5])))
        else:
            with tarfile.open(fileobj=file, mode="w:gz") as packed:
                for name in names:
                    member = tarfile.TarInfo(name)
                    member.size = rng.choice([10, 10**5])
                    packed.addfile(member, io.BytesIO(bytes(member.size)))
        return file.getvalue()

    return make


def _partition(rng: random.Random) -> bytes:
    made = partition.make(
        "iid",
        np.arange(60) % 3,
        "0" * 64,
        clients=4,
        alpha=1.0,
        classes_each=2,
        minimum=2,
        test=0.5,
        seed=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        made.save(path := Path(folder) / "p.json")
        return path.read_bytes()


def _record(rng: random.Random) -> bytes:
    values = {"path": "x.npz", "layout": "class", "size": 5, "grey": True, "drop": ["a"], "missing": "mean"}
    return tomli_w.dumps({k: v for k, v in values.items() if rng.random() < 0.8}).encode()


def _read_picture(path: Path) -> None:
    for name in ("cat", "dog"):
        (path.parent / name).mkdir()
        Image.new("RGB", (16, 16)).save(path.parent / name / "other.png")
    path.rename(path.parent / "cat" / path.name)
    folders.read("pets", path.parent, size=8, grey=True)


FORMATS: dict[str, tuple[str, Callable[[random.Random], bytes], Callable[[Path], Any]]] = {
    "npz": ("a.npz", _npz, lambda path: npz.read(path).task),
    "npz, filled": ("a.npz", _npz, lambda path: npz.read(path, "mean").described()),
    "csv": ("a.csv", _csv, lambda path: tables.read(path).task),
    "csv, filled": ("a.csv", _csv, lambda path: tables.read(path, missing="mean").task),
    "parquet": ("a.parquet", _parquet, lambda path: tables.read(path).task),
    **{kind: (f"a.{kind}", _picture(kind), _read_picture) for kind in PICTURES},
    "idx.gz": ("a.gz", _idx, lambda path: idx.values(path, idx.IMAGES)),
    "torch": ("a.pth", _torch, torch_file.read),
    "safetensors": ("a.safetensors", _tensors, pretrained.load),
    "weights in npz": ("a.npz", _npz, pretrained.load),
    "zip": ("a.zip", _archive("zip"), lambda path: unpack.archive(path, path.parent / "out")),
    "tar.gz": ("a.tar.gz", _archive("tar"), lambda path: unpack.archive(path, path.parent / "out")),
    "partition": ("p.json", _partition, lambda path: partition.load(path, "0" * 64, 60)),
    "record of data add": ("mine.toml", _record, own.load),
}


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with a byte, a stretch or its end changed."""
    at, length = rng.randrange(len(content) + 1), rng.choice([1, 2, 4, 8, 64])
    kinds: list[Callable[[], bytes]] = [
        lambda: content[:at],
        lambda: content[:at] + rng.randbytes(length) + content[at + length :],
        lambda: content[:at] + rng.randbytes(length) + content[at:],
        lambda: content[:at] + content[at + length :],
        lambda: content[:at] + b"\xff" * length + content[at + length :],
        lambda: content[:at] + content[at : at + length] * 50 + content[at:],
        lambda: rng.randbytes(length * 10),
        lambda: content[: len(content) // 2] + content,
    ]
    if at < len(content):
        flipped = content[at] ^ (1 << rng.randrange(8))
        kinds += [lambda: content[:at] + bytes([flipped]) + content[at + 1 :]] * 4
    digits = [k for k, c in enumerate(content[:4000]) if chr(c) in string.digits]
    if digits:
        place = rng.choice(digits)
        kinds += [lambda: content[:place] + b"9" * rng.choice([1, 12, 30]) + content[place + 1 :]] * 2
    return rng.choice(kinds)()


def one_file(number: int, seed: int) -> tuple[str, str, str]:
    """Format, outcome and words of this case."""
    rng = random.Random(f"{seed}/file/{number}")
    kind = list(FORMATS)[number % len(FORMATS)]
    name, make, read = FORMATS[kind]
    content = make(rng)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        content = mutated(content, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return kind, *_outcome(lambda: read(path), "read")


# configurations


def _value(rng: random.Random) -> Any:
    """A value that some setting may refuse."""
    return rng.choice(
        [
            *(0, 1, 2, 3, -1, 10, 2**31, 2**63, 10**30, 0.0, 0.5, 1.0, -0.5, 1e-320, 1e300),
            *(float("inf"), float("nan"), True, False, "", "x", "auto", "a.json", "1", "cuda:99999999999"),
            *(
                [],
                [1, 2],
                [[]],
                ["x"],
                {},
                {"a": 1},
                [-1],
                *NASTY,
                *METHODS,
                "fedavg(",
                "fedprox(mu=x)",
                "x.py:Y",
            ),
            *(
                "pfedsim:reference",
                "dirichlet",
                "classes",
                "iid",
                "given",
                "mlp",
                "lenet5",
                "torch",
                "native",
            ),
        ]
    )


RIGHT: dict[str, tuple[Any, ...]] = {  # values that are likely to be accepted
    **dict.fromkeys(("rounds", "epochs", "clients", "batch", "workers", "planned"), (1, 2, 3, 7)),
    **dict.fromkeys(("alpha", "lr", "join", "test", "unseen", "momentum", "decay"), (0.1, 0.5, 0.9, 1e-30)),
    **dict.fromkeys(("seed", "partition_seed"), (0, 1, 2**32 - 1)),
    "method": (*METHODS, "pfedsim(rho=0.5)", "fedprox(mu=1e30)"),
    "partition": ("iid", "dirichlet", "dirichlet-plain", "classes", "shards", "quantity", "given"),
    "minimum": (2, 3),
    "backend": ("auto", "torch", "native"),
    "model": ("mlp", "lenet5", "cnn1d"),
    "guard": ("off", "warn", "reject"),
    "buffers": ("local", "shared"),
    "shuffle": (True, False),
    "device": ("cpu", "cuda", "cuda:99999999999"),
    "local_steps": (1, 5),
    "lr_decay": (0.5, 1.0),
    "validation": (0.1, 0.5),
    "classes_each": (1, 2, 9),
}


def _settings(rng: random.Random) -> dict[str, Any]:
    names = [n for n in configs.Config.model_fields if n not in ("data", "data_dir", "track", "options")]
    made: dict[str, Any] = {}
    sensible = rng.choice([0.5, 0.95, 1.0])  # else almost everything would be refused at its first setting
    for name in rng.sample(sorted(RIGHT) if sensible == 1 else names, rng.choice([1, 2, 4, 8])):
        sane = name in RIGHT and rng.random() < sensible
        made[name] = rng.choice(RIGHT[name]) if sane else _value(rng)
    for _ in range(rng.choice([0, 0, 1, 2]) * (sensible < 1)):
        table = rng.choice(["score", "dropouts", "digests", *METHODS, "nothing"])
        keys = ["every", "finetune", "never", "late", "never_clients", "mu", "rho", "alpha", "data", "x"]
        made[table] = {rng.choice(keys): _value(rng) for _ in range(2)}
    if rng.random() < 0.1 * (sensible < 1):
        made[rng.choice(["learning_rate", "x.y", "é", "options", "\x1b"])] = _value(rng)
    return made


def _text(rng: random.Random) -> bytes:
    """A configuration file, in a fifth of the cases with mutated text."""
    content = tomli_w.dumps(_settings(rng)).encode(errors="replace")
    if rng.random() < 0.2:
        for _ in range(rng.choice([1, 3])):
            content = mutated(content, rng)
        if rng.random() < 0.1:
            content = b"rounds = " + b"[" * 5000
    return content


def _run(path: Path, data: Path) -> None:
    config = configs.check({**configs.load(path), "data": str(data)})
    small = {
        "rounds": min(config.rounds or 2, 2),
        "epochs": min(config.epochs, 2),
        "workers": min(config.workers or 1, 2),
        "score": config.score.model_copy(update={"finetune": min(config.score.finetune or 0, 1)}),
    }
    execute(config.model_copy(update=small), path.parent / "run")


def one_configuration(number: int, seed: int, data: Path) -> tuple[str, str, str]:
    """What became of this case: its kind, outcome and words."""
    rng = random.Random(f"{seed}/configuration/{number}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_bytes(_text(rng))
        return "configuration", *_outcome(lambda: _run(path, data), "run")


def samples(path: Path) -> Path:
    """The 60 samples on which configurations run."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(path, x=(draw.normal(size=(60, 4)) + y[:, None]).astype(np.float32), y=y, client=y.repeat(1))
    return path


def _outcome(act: Callable[[], Any], done: str) -> tuple[str, str]:
    before = signal.signal(signal.SIGALRM, _slow)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            act()
        return done, ""
    except Error as error:
        return "refused", str(error)
    except (Exception, Slow):
        return "traceback", traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measure(files: int, configurations: int, seed: int) -> dict[str, Any]:
    """All cases of this seed, counted by kind and outcome."""
    os.environ["PFEDSIM_MEMORY"] = MEMORY
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PFEDSIM_CACHE"] = cache
        data = samples(Path(cache) / "samples.npz")
        found = [one_file(k, seed) for k in range(files)]
        found += [one_configuration(k, seed, data) for k in range(configurations)]
    counts: dict[str, Counter[str]] = {}
    for kind, outcome, _ in found:
        counts.setdefault(kind, Counter())[outcome] += 1
    return {
        "files": files,
        "configurations": configurations,
        "seed": seed,
        "outcomes": {kind: dict(sorted(count.items())) for kind, count in counts.items()},
        "longest sentence": max(
            (len(words) for _, outcome, words in found if outcome == "refused"), default=0
        ),
        "lines in a sentence": max(
            (words.count("\n") + 1 for _, o, words in found if o == "refused"), default=0
        ),
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
        "tracebacks": [f"{kind}: {words}" for kind, outcome, words in found if outcome == "traceback"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--configurations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    report = measure(asked.files, asked.configurations, asked.seed)
    text = json.dumps(report, indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    print(text, end="")
    raise SystemExit(1 if report["tracebacks"] else 0)


if __name__ == "__main__":
    main()
