"""Large arrays between processes by shared memory: written once, read in place. What goes through the pipe beside
them is small."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

LARGE = 1 << 16  # bytes from which an array goes by shared memory


class Place(NamedTuple):
    """Where an array lies on a shelf. `number` never comes again, so that a new array in an old place is not
    mistaken for the old one."""

    number: int
    start: int
    size: int


class Shelf:
    """Shared memory that grows as needed, for this process and those that it forks afterwards. It has no name, so
    that nothing is left when they end."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("pfedsim")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._count = 0
        self.clear()

    def clear(self) -> None:
        """Everything may be overwritten from now on."""
        self._end = 0
        self._free: dict[int, list[int]] = {}  # by size

    def put(self, array: memoryview) -> Place:
        """Copies an array here."""
        again = self._free.get(array.nbytes)
        start = again.pop() if again else self._end
        place = Place(self._count, start, array.nbytes)
        done = 0
        while done < place.size:
            done += os.pwrite(self._file, array[done:], start + done)
        self._end = max(self._end, start + _whole_pages(place.size))
        self._count += 1
        return place

    def free(self, place: Place) -> None:
        """Nobody needs this array any more."""
        self._free.setdefault(place.size, []).append(place.start)

    def view(self, place: Place) -> mmap.mmap:
        """The array where it lies. Whoever writes into it changes a copy of their own."""
        return mmap.mmap(self._file, place.size, mmap.MAP_PRIVATE, offset=place.start)

    def read(self, place: Place, into: np.ndarray) -> None:
        """Copies the array's bytes from here."""
        done = 0
        while done < place.size:
            done += os.preadv(self._file, [into.data[done:]], place.start + done)

    def __del__(self) -> None:
        os.close(self._file)


class Stock:
    """Memory for arrays that come and go in every round. New memory costs several times as much as copying into
    memory that was used before."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}  # by size

    def empty(self, size: int) -> np.ndarray:
        """So many bytes; they come back here when nobody uses them any more."""
        free = self._free.setdefault(size, [])
        memory = free.pop() if free else np.empty(size, dtype=np.uint8)
        array = np.frombuffer(memory.data, dtype=np.uint8)
        weakref.finalize(array, free.append, memory).atexit = False
        return array


def _whole_pages(size: int) -> int:
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def address(array: Any) -> int:
    """Where an array lies in this process."""
    return int(np.frombuffer(array, dtype=np.uint8).ctypes.data)


@dataclass
class _Lent:
    place: Place
    array: memoryview  # which keeps it where it is
    jobs: int = 0


class Lender:
    """The arrays that jobs take along. One that many clients are sent lies on the shelf once, until the last of
    their jobs is done."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self._lent: dict[int, _Lent] = {}  # by number
        self._numbers: dict[tuple[int, int], int] = {}  # by address and size

    def lend(self, array: memoryview) -> Place:
        """For one job more."""
        key = address(array), array.nbytes
        if key not in self._numbers:
            place = self.shelf.put(array)
            self._numbers[key] = place.number
            self._lent[place.number] = _Lent(place, array)
        lent = self._lent[self._numbers[key]]
        lent.jobs += 1
        return lent.place

    def original(self, number: int) -> memoryview:
        """What was lent under this number."""
        return self._lent[number].array

    def take_back(self, places: Iterable[Place]) -> None:
        """A job that had these is done."""
        for place in places:
            lent = self._lent[place.number]
            lent.jobs -= 1
            if not lent.jobs:
                del self._numbers[address(lent.array), place.size], self._lent[place.number]
                self.shelf.free(place)

    def clear(self) -> None:
        """No job has anything any more."""
        self._lent, self._numbers = {}, {}
        self.shelf.clear()


class Borrower:
    """What the current job of a worker has from the lender's shelf, and its own two shelves, which take turns: the
    server may still read the last answer while this one is written."""

    def __init__(self, lender: Shelf, own: tuple[Shelf, Shelf]):
        self._lender, self._own, self._turn = lender, own, 0
        self._open: dict[int, mmap.mmap] = {}
        self._numbers: dict[int, int] = {}  # by address

    def borrow(self, places: Iterable[Place]) -> list[mmap.mmap]:
        """The arrays of a new job; those that the last one had too are not opened again."""
        wanted = list(places)
        before, self._open = self._open, {}
        for place in wanted:
            self._open[place.number] = before.get(place.number) or self._lender.view(place)
        self._numbers = {address(view): number for number, view in self._open.items()}
        self._turn = 1 - self._turn
        self._own[self._turn].clear()
        return [self._open[place.number] for place in wanted]

    def is_lent(self, start: int) -> bool:
        """Whether the array that begins here is the lender's."""
        return start in self._numbers

    def hand_back(self, array: memoryview) -> Handed:
        """For an answer: the lender's own array by its number, any other on this worker's shelf."""
        number = self._numbers.get(address(array))
        if number is not None and len(self._open[number]) == array.nbytes:
            return number
        return self._turn, self._own[self._turn].put(array)


Handed = int | tuple[int, Place]
