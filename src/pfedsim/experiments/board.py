"""A board: the data sets, methods, seeds and tuning budget of a leaderboard, read from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfedsim.errors import Error, must, nearest
from pfedsim.experiments import boards, published
from pfedsim.methods import METHOD_GROUPS, METHODS, label, parse
from pfedsim.runs import config as configs

ALONE = "Local-Only"
OURS = ("method", "seed")  # settings that the board itself decides
SHARED = ("data", *configs.OF_FEDERATION)  # settings that all methods of a place share


class Tuning(BaseModel):
    """How much every method may try on every data set, judged on validation parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: int = Field(ge=2)
    validation: float = Field(gt=0, lt=1)


class Place(BaseModel):
    """A data set and how it is partitioned: one column of the board."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")]
    title: str
    settings: dict[str, Any]
    tuning_rounds: int | None = Field(None, ge=1)
    round_seconds: float = Field(gt=0)
    """processor seconds of a round of FedAvg, for estimates before anything is finished"""
    methods: tuple[str, ...] = ()
    """only these (default: the board's)"""
    own: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """settings of single methods, by method"""
    published: str | None = None
    """the protocol of methods/published.toml whose numbers stand beside ours"""
    varies: str | None = None
    """another place, from which this one differs in its settings alone; it is no column of the table"""


class Board(BaseModel):
    """All that a leaderboard runs. Without `tuning`, methods run with the settings as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """as in `pfedsim leaderboard NAME`"""
    title: str
    about: str = ""
    methods: Annotated[tuple[str, ...], MinLen(1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], MinLen(1)]
    tuning: Tuning | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    set: Annotated[tuple[Place, ...], MinLen(1)]

    @property
    def places(self) -> tuple[Place, ...]:
        """The data sets that the table compares."""
        return tuple(place for place in self.set if place.varies is None)

    def variants(self, place: Place) -> list[Place]:
        """What varies this place."""
        return [other for other in self.set if other.varies == place.name]

    def place(self, name: str) -> Place:
        """The place of this name."""
        for place in self.set:
            if place.name == name:
                return place
        raise Error(f"the board {self.name} has no data set {name!r}; {nearest(name, self.names)}")

    @property
    def names(self) -> list[str]:
        return [place.name for place in self.set]

    def words(self, place: Place, method: str = "") -> dict[str, Any]:
        """The settings of a place, over those of all, and below those of the method."""
        below = self.words(self.place(place.varies), method) if place.varies else self.settings
        return merged(merged(below, place.settings), place.own.get(method, {}))

    def methods_at(self, place: Place) -> list[str]:
        """The methods of a place. Where the table compares them, Local-Only is one: it tells who is worse off."""
        specs = expanded(place.methods or self.methods)
        if place.published and not place.methods:
            known = published.numbers(place.published)
            specs += [m for m in METHODS if m in known and m not in specs]
        return (
            specs
            if place.varies or any(label(parse(s)) == label(parse("local")) for s in specs)
            else ["local", *specs]
        )


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The settings `above` over those `below`, table by table."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def expanded(words: tuple[str, ...]) -> list[str]:
    """The methods that these words name; `paper` and `all` are groups."""
    return list(dict.fromkeys(m for word in words for m in METHOD_GROUPS.get(word, (word,))))


def load(name: str) -> Board:
    """The board of this name, or in this TOML file. Everything that can be checked without data is checked."""
    path = Path(name)
    if not name.endswith(".toml"):
        known = boards.find(name)
        if known is None:
            raise Error(
                f"there is no board {name!r}; {nearest(name, boards.NAMES)} (your own: a .toml file, see "
                "docs/boards.md)"
            )
        path = known
    content = configs.load(path)
    try:
        board = Board(**{"name": name, **content})
    except ValidationError as error:
        raise Error(f"{path.name}: {_sentence(error)}") from None
    _check(board, path.name)
    return board


def _sentence(error: ValidationError) -> str:
    every = error.errors()
    first = next(
        (e for e in every if e["type"] == "extra_forbidden"), every[0]
    )  # a typo may look like a lack
    place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known: dict[str, type[BaseModel]] = {"set": Place, "tuning": Tuning}
        above = [part for part in first["loc"][:-1] if isinstance(part, str)]
        kind = known.get(above[-1], Board) if above else Board
        return f"there is no {place!r}; {nearest(str(first['loc'][-1]), kind.model_fields)}"
    if first["type"] == "missing":
        return f"{place} is needed"
    return f"{place} = {must(first)}"


def _check(board: Board, file: str) -> None:
    """Refuse what no cell could run with."""
    twice = [name for name in board.names if board.names.count(name) > 1]
    if twice:
        raise Error(f"{file}: two data sets are called {twice[0]}; give each a name of its own")
    if len(set(board.seeds)) < len(board.seeds):
        raise Error(f"{file}: seeds {', '.join(map(str, board.seeds))}: give different integers")
    if not board.places:
        raise Error(f"{file}: every data set varies another one; at least one must stand for itself")
    for place in board.set:
        if place.varies and board.place(place.varies).varies:
            raise Error(
                f"{file}: {place.name} varies {place.varies}, which itself varies another; name that one"
            )
        words = board.words(place)
        for word in OURS:
            if word in words:
                raise Error(f"{file}: {place.name} sets {word}, which the board decides by itself")
        for word in ("data", "clients", "rounds"):
            if word not in words:
                raise Error(f"{file}: {place.name} needs {word} in its settings")
        if of_federation := [k for own in place.own.values() for k in own if k in (*OURS, *SHARED)]:
            raise Error(
                f"{file}: {place.name} sets {of_federation[0]} for a single method, but it is the same for all"
            )
        if place.published is not None and place.published not in published.protocols():
            hint = nearest(place.published, published.protocols())
            raise Error(f"{file}: {place.name}: there is no published protocol {place.published!r}; {hint}")
        if (board.tuning is None) != (place.tuning_rounds is None):
            missing = "[tuning]" if board.tuning is None else f"tuning_rounds of {place.name}"
            raise Error(f"{file}: tuning needs both [tuning] and tuning_rounds; {missing} is missing")
        try:
            for method in board.methods_at(place):
                configs.check({**board.words(place, method), "method": method})
        except Error as error:
            raise Error(f"{file}, {place.name}: {error}") from error
