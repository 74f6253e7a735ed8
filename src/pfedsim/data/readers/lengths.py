"""Signals of unequal lengths: padded, cut, or divided into windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pfedsim import memory
from pfedsim.errors import Error


def evened(
    path: Path, x: np.ndarray, length: np.ndarray, lengths: str | None, steps: int | None
) -> tuple[np.ndarray, np.ndarray, str]:
    """Signals of equal lengths as (signal, channel, step), which of the given signals each one is of, and what was
    done. `x`: signals padded to the longest as (signal, channel, step), or one after another as (step, channel)."""
    parts = _parts(path, x, length)
    shortest, longest = int(length.min()), int(length.max())
    if lengths is None:
        if shortest == longest:
            return np.stack(parts), np.arange(len(parts)), ""
        raise Error(
            f"{path}: the signals have {shortest} to {longest} steps; choose --lengths pad, cut or window (of `pfedsim "
            "data add`), with --length N for a length of your own"
        )
    steps = steps or (longest if lengths == "pad" else shortest)
    if lengths == "pad" and longest > steps:
        raise Error(f"{path}: the longest signal has {longest} steps; pad to at least as many, not {steps}")
    if lengths == "cut" and shortest < steps:
        few = int((length < steps).sum())
        raise Error(
            f"{path}: {few} signal{'s' * (few != 1)} {'have' if few != 1 else 'has'} fewer than {steps} steps; cut "
            f"to at most {shortest}, or pad"
        )
    count = [len(p[0]) // steps for p in parts] if lengths == "window" else [1] * len(parts)
    memory.need(path, sum(count) * parts[0].shape[0] * steps * 4)
    if not sum(count):
        raise Error(f"{path}: no signal has {steps} steps; the longest has {longest}")
    if lengths == "pad":
        made = [np.pad(p, ((0, 0), (0, steps - p.shape[1])), constant_values=np.nan) for p in parts]
    else:
        made = [
            p[:, k * steps : (k + 1) * steps] for p, n in zip(parts, count, strict=True) for k in range(n)
        ]
    return np.stack(made), np.repeat(np.arange(len(parts)), count), _said(lengths, steps, length, count)


def _said(lengths: str, steps: int, length: np.ndarray, count: list[int]) -> str:
    if lengths == "pad":
        few = int((length < steps).sum())
        return f"{few} of {len(length)} signals padded to {steps} steps, with each party's mean"
    if lengths == "cut":
        return f"signals cut to their first {steps} steps of up to {int(length.max())}"
    gone, none = int(length.sum()) - steps * sum(count), count.count(0)
    short = f", {none} signals are shorter and left out" if none else ""
    return (
        f"{len(length)} signals divided into {sum(count)} windows of {steps} steps; {gone} steps at the ends are left "
        f"out{short}; windows of one signal may be in both train and test part"
    )


def _parts(path: Path, x: np.ndarray, length: np.ndarray) -> list[np.ndarray]:
    """Each signal as (channel, step)."""
    if x.dtype.kind not in "uifb" or length.ndim != 1 or length.dtype.kind not in "iu" or not len(length):
        raise Error(
            f"{path}: length must hold an integer, the number of steps, for each signal of numbers in x"
        )
    if length.min() < 1:
        raise Error(f"{path}: length has the value {int(length.min())}; every signal needs at least 1 step")
    x = x.astype(np.float32)
    if x.ndim == 3 and len(x) == len(length) and length.max() <= x.shape[2]:
        return [signal[:, :steps] for signal, steps in zip(x, length, strict=True)]
    if x.ndim in (1, 2) and len(x) == length.sum():
        ends = np.cumsum(length)[:-1]
        return [np.ascontiguousarray(part.T) for part in np.split(x.reshape(len(x), -1), ends)]
    raise Error(
        f"{path}: x has shape {x.shape} and length {length.shape}; with length, x holds all {int(length.sum())} steps "
        "one after another as (steps, channels), or padded signals as (signals, channels, steps)"
    )
