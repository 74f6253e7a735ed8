"""What a sweep varies: values or ranges of settings, and the combinations of them that are tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, product
from typing import Any

import numpy as np

from pfedsim.core import seeds
from pfedsim.errors import Error
from pfedsim.methods import literal

DOTS, LOG = "..", ":log"
DIGITS = 3  # significant digits of a drawn number
TRIES = 1000  # draws in a row that give nothing new before there is nothing new


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, both included: integers if both are; `log`: every factor is equally likely."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise Error(f"the range {self} should go from a lower to a higher number")
        if self.log and self.low <= 0:
            raise Error(f"the range {self}: a logarithmic one begins above 0")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> int | float:
        """The number at this share of the way."""
        high = self.high + 1 if self.whole else self.high  # each integer has its part of the way
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(high) - math.log(self.low)))
        else:
            value = self.low + share * (high - self.low)
        if self.whole:
            return min(int(value), int(self.high))
        return min(max(rounded(value), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low}{DOTS}{self.high}{LOG if self.log else ''}"


Space = Mapping[str, "Sequence[Any] | Range"]


def rounded(value: float) -> float:
    """The number with a few significant digits."""
    return float(f"{value:.{DIGITS}g}")


def parse_over(assignments: Sequence[str]) -> dict[str, Any]:
    """The space that --over describes: KEY=VALUE,VALUE,... or KEY=LOW..HIGH[:log] each."""
    space: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not key or not text:
            raise Error(f"--over {assignment!r} should have the form KEY=VALUE,VALUE or KEY=LOW..HIGH")
        if key in space:
            raise Error(f"--over {key} is given twice; list all its values in one")
        space[key] = values_of(key, text)
    return space


def values_of(key: str, given: Any) -> list[Any] | Range:
    """The values of one setting: a list, a Range, or the text of either."""
    if isinstance(given, Range):
        return given
    if isinstance(given, str):
        if DOTS in given:
            return _range(key, given)
        given = [literal(part) for part in split(given)]
    if not isinstance(given, Sequence) or not given:
        raise Error(
            f"over {key} = {given!r}: give a list of values, or a range such as 0.001{DOTS}0.1{LOG}"
        )
    values = list(given)
    for value in values:
        if sum(v == value and isinstance(v, bool) == isinstance(value, bool) for v in values) > 1:
            raise Error(f"over {key}: {value!r} is given twice")
    return values


def split(text: str) -> list[str]:
    """Split the text at commas outside parentheses and brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _range(key: str, text: str) -> Range:
    bare, log = (text.removesuffix(LOG), True) if text.endswith(LOG) else (text, False)
    low, high = (literal(part.strip()) for part in bare.split(DOTS, 1))
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise Error(f"over {key} = {text!r}: a range has the form LOW{DOTS}HIGH, or LOW{DOTS}HIGH{LOG}")
    return Range(low, high, log)


def grid(space: Space) -> list[dict[str, Any]]:
    """All combinations, the last setting varying fastest."""
    for key, values in space.items():
        if isinstance(values, Range):
            raise Error(
                f"over {key} = {values}: a grid needs values; say how many trials to draw from a range"
            )
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]  # type: ignore[arg-type]


def drawn(space: Space, trials: int, seed: int) -> list[dict[str, Any]]:
    """So many different combinations, drawn at random. The first of many are those of few."""
    found: list[dict[str, Any]] = list(islice(_draws(space, seed), trials))
    if len(found) < trials:
        raise Error(
            f"trials = {trials}: there are only {len(found)} combinations; leave it out to run them all"
        )
    return found


def _draws(space: Space, seed: int) -> Iterator[dict[str, Any]]:
    stream, in_vain = np.random.default_rng(seeds.address(seed, "sweep")), 0
    seen: list[dict[str, Any]] = []
    size = math.prod(
        math.inf if isinstance(v, Range) and not v.whole else _count(v) for v in space.values()
    )
    while len(seen) < size and in_vain < TRIES:
        one = {key: _at(values, stream.random()) for key, values in space.items()}
        in_vain += 1
        if one not in seen:
            seen.append(one)
            in_vain = 0
            yield one


def _count(values: Sequence[Any] | Range) -> int:
    return int(values.high) - int(values.low) + 1 if isinstance(values, Range) else len(values)


def _at(values: Sequence[Any] | Range, share: float | Fraction) -> Any:
    if isinstance(values, Range):
        return values.at(float(share))
    return values[int(share * len(values))]


def spread(space: Space, trials: int) -> list[dict[str, Any]]:
    """So many combinations, spread evenly around the middle, which is left out (Halton's sequence). The first of
    many are those of few, and a setting that stands first in several spaces gets the same values in each."""
    bases = _primes(len(space))
    return [
        {
            key: _at(values, halton(number, base))
            for (key, values), base in zip(space.items(), bases, strict=True)
        }
        for number in range(2, trials + 2)
    ]


def halton(number: int, base: int) -> Fraction:
    """The digits of a number in this base, mirrored at the point."""
    found, scale = Fraction(0), Fraction(1)
    while number:
        number, digit = divmod(number, base)
        scale /= base
        found += digit * scale
    return found


def _primes(count: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found
