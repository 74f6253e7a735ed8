"""Read a .pth file of tensors safely: the pickle is interpreted opcode by opcode, and nothing that it names is
ever imported or called."""

from __future__ import annotations

import io
import math
import os
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from pfedsim import memory
from pfedsim.errors import Error

KINDS = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ByteStorage": "u1",
}
PLAIN = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
NUMBERS_AND_WORDS = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "SHORT_BINSTRING", "BINSTRING"),
}


@dataclass(frozen=True)
class _Named:
    """The name of a class or function, which is never imported."""

    name: str


@dataclass(frozen=True)
class _Tensor:
    kind: str
    storage: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the named tensors of a .pth file, in torch's current (zip) or legacy format. Anything else in it is an
    error."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                (pickled,) = [name for name in packed.namelist() if name.endswith("/data.pkl")]
                root = pickled.removesuffix("data.pkl")
                memory.need(path, sum(member.file_size for member in packed.infolist()))
                return _tensors(
                    path,
                    _walked(io.BytesIO(packed.read(pickled))),
                    lambda key: packed.read(f"{root}data/{key}"),
                )
        memory.need(path, path.stat().st_size)
        with open(path, "rb") as file:
            for _ in range(3):  # a magic number, the version, the sizes of C's types
                _walked(file)
            described, keys = _walked(file), _walked(file)
            sizes = {
                t.storage: np.dtype(KINDS[t.kind]).itemsize
                for t in described.values()
                if isinstance(t, _Tensor)
            }
            stored = {key: _read(file, int.from_bytes(file.read(8), "little") * sizes[key]) for key in keys}
            return _tensors(path, described, stored.__getitem__)
    except Error:
        raise
    except Exception as error:  # a damaged file can fail anywhere
        raise Error(
            f"{path} is not a file of tensors: {' '.join(str(error).split())[:120] or type(error).__name__}"
        ) from error


def _read(file: IO[bytes], size: int) -> bytes:
    """The next bytes of the file, which must be there."""
    if size > os.fstat(file.fileno()).st_size:
        raise ValueError("it is truncated")
    return file.read(size)


def _tensors(path: Path, described: Any, stored: Callable[[str], bytes]) -> dict[str, np.ndarray]:
    for name, t in described.items():
        if not isinstance(name, str) or not isinstance(t, _Tensor):
            raise ValueError(f"{name!r} is not a tensor")
    # a stride of 0 repeats one number: a tensor can be larger than the file
    memory.need(
        path, sum(math.prod(t.shape) * np.dtype(KINDS[t.kind]).itemsize for t in described.values())
    )
    stored, found = cache(stored), {}
    for name, t in described.items():
        numbers = np.frombuffer(stored(t.storage), KINDS[t.kind])
        last = t.offset + sum((n - 1) * step for n, step in zip(t.shape, t.stride, strict=True))
        if min((0, t.offset, *t.shape, *t.stride)) < 0 or (0 not in t.shape and last >= len(numbers)):
            raise ValueError(f"{name!r} reaches outside its storage")
        strides = [step * numbers.itemsize for step in t.stride]
        found[name] = np.ascontiguousarray(
            np.lib.stride_tricks.as_strided(numbers[t.offset :], t.shape, strides)
        ).reshape(t.shape)
    return found


def _walked(file: IO[bytes]) -> Any:
    """The value of one pickle in the stream, which may consist only of tensors, numbers, strings, lists and
    dicts."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        at = marks.pop()
        values = stack[at:]
        del stack[at:]
        return values

    for operation, word, _ in pickletools.genops(file):
        name = operation.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack.pop()
        if name in NUMBERS_AND_WORDS:
            stack.append(word)
        elif name in PLAIN:
            stack.append(PLAIN[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            values = since_mark() if name == "TUPLE" else [stack.pop() for _ in range(int(name[-1]))][::-1]
            stack.append(tuple(values))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            memo[len(memo) if word is None else int(word)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(word or 0)])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(
                _Named(str(word) if name == "GLOBAL" else " ".join([stack.pop(), stack.pop()][::-1]))
            )
        elif name in ("SETITEM", "SETITEMS"):
            values = since_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            stack[-1].update(zip(values[::2], values[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            values = since_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(values)
        elif name == "BUILD" and isinstance(stack[-2], dict):
            stack.pop()  # attributes of a dict: a state_dict keeps its versions there
        elif name == "REDUCE":
            arguments, made = stack.pop(), stack.pop()
            stack.append(_made(made, arguments))
        elif name != "BINPERSID":  # keep its tuple, which describes a storage
            raise ValueError(f"it contains {name}, which no file of tensors needs")
    raise ValueError("it is truncated")


def _made(what: Any, arguments: Any) -> Any:
    if what == _Named("collections OrderedDict"):
        return {}
    if what == _Named("torch._utils _rebuild_tensor_v2"):
        (_, kind, key, *_), offset, shape, stride = arguments[:4]
        return _Tensor(kind.name.removeprefix("torch "), key, offset, tuple(shape), tuple(stride))
    raise ValueError(f"it asks for {what.name if isinstance(what, _Named) else what!r}")
