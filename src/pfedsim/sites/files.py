"""The files that people write: the federation's, which everybody may see, and each site's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfedsim.errors import Error, must, nearest

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
HOST = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$"
ADMIN = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
ROLES = ("project_admin", "org_admin", "lead", "member")
SITE_FILE = "pfedsim.toml"  # in a kit's local folder

SiteName = Annotated[str, Field(pattern=NAME)]
Clients = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FederationFile(Table):
    """Who takes part: `sites` binds client ids to site names, `admins` says who may do what."""

    name: str = Field(pattern=NAME)
    host: str = Field(pattern=HOST)
    port: int = Field(8002, ge=1, le=65535)
    sites: dict[SiteName, Clients] = Field(min_length=1)
    admins: dict[str, Literal["project_admin", "org_admin", "lead", "member"]] = Field(min_length=1)
    days: int = Field(360, ge=1, le=3650)


class SiteFile(Table):
    """What a site has. `partition`: the data are a set that every site has, divided by this file; without it they are
    this site's own. `time_limit`: seconds that one client's work may take."""

    data: str
    data_dir: str | None = None
    partition: str | None = None
    folder: str
    shares_scores: bool = True
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    time_limit: Seconds | None = None


class HubFile(Table):
    """What the hub has: where runs go, what the data are like, and how they are divided."""

    runs: str
    task: str
    partition: str | None = None


class Ready(Table):
    """A kit's own file, which `prepare` writes: who it is, beside what its owner wrote."""

    federation: FederationFile
    name: str
    site: SiteFile | None = None
    hub: HubFile | None = None


Kind = TypeVar("Kind", bound=Table)


def read(kind: type[Kind], path: Path, what: str) -> Kind:
    """A file of this kind; `what` it should be, for messages."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"{what} {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Error(f"{what} {path} is not TOML: {error}") from error
    return checked(kind, content, f"{what} {path}")


def checked(kind: type[Kind], content: dict[str, Any], where: str) -> Kind:
    """A table of this kind; one sentence where it is not."""
    try:
        found = kind(**content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise Error(f"{where}: there is no {place!r}; {nearest(place, kind.model_fields)}") from None
        if first["type"] == "missing":
            raise Error(f"{where} needs {place!r}") from None
        raise Error(f"{where}: {place} = {must(first)}") from None
    if isinstance(found, FederationFile):
        bound(found.sites)
        for name in found.admins:
            if not ADMIN.fullmatch(name):
                raise Error(f"{where}: the admin {name!r} must be named like an e-mail address")
        if {found.host, "hub"} & found.sites.keys():
            raise Error(f"{where}: a site cannot be called like the hub")
    return found


def bound(names: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """The site of every client, from the clients of every site."""
    found: dict[int, str] = {}
    for site, clients in names.items():
        for client in clients:
            if client in found:
                raise Error(f"client {client} is bound to two sites, {found[client]!r} and {site!r}")
            found[client] = site
    if strange := sorted(set(range(len(found))) ^ set(found)):
        raise Error(f"clients are numbered from 0 without a gap; {strange[0]} is missing or too many")
    return found


def checked_name(name: str) -> str:
    """A run's name, which becomes a folder's."""
    if not re.fullmatch(NAME, name):
        raise Error(f"--name {name!r}: use letters, digits, '-' and '_', at most 63")
    return name
