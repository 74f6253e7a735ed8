"""A run's state as named tensors, and back: nothing executable, nothing lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfedsim.errors import Error
from pfedsim.method import Client, Server
from pfedsim.rows import Pairs, Rows
from pfedsim.server import State

if TYPE_CHECKING:
    from torch import Tensor


def to_tensors(state: State) -> dict[str, Tensor]:
    """Every tensor of the state under a path of names."""
    import torch

    tensors = {"server/round": torch.tensor(state.server.round), "server/model": state.server.model}
    if state.server.personal is not None:
        tensors |= _rows("server/personal", state.server.personal)
    for name, value in state.server.extra.items():
        if isinstance(value, Rows):
            tensors |= _rows(f"server/extra/{name}", value)
        elif isinstance(value, Pairs):
            tensors |= {f"server/extra/{name}/pairs/{k}": t for k, t in value.tensors().items()}
        else:
            tensors[f"server/extra/{name}"] = value
    for i, client in state.memories.items():
        if client.kept is not None:
            tensors[f"client/{i}/kept"] = client.kept
        tensors |= {f"client/{i}/extra/{name}": t for name, t in client.extra.items()}
    return tensors


def from_tensors(tensors: Mapping[str, Tensor]) -> State:
    """The state that `to_tensors` gave."""
    try:
        server, clients = _below(tensors, "server"), _below(tensors, "client")
        personal = _below(server, "personal")
        memories = {}
        for i in sorted({int(path.partition("/")[0]) for path in clients}):
            own = _below(clients, str(i))
            memories[i] = Client(own.get("kept"), _below(own, "extra"))
        extra = _below(server, "extra")
        names = dict.fromkeys(path.partition("/")[0] for path in extra)
        made = {name: extra[name] if name in extra else _table(_below(extra, name)) for name in names}
        return State(Server(int(server["round"]), server["model"], _table_rows(personal) if personal else None, made), memories)
    except (KeyError, ValueError) as error:
        raise Error(f"these tensors are not a run's state: {error}") from error


def _rows(path: str, rows: Rows) -> dict[str, Tensor]:
    return {f"{path}/rows/default": rows.default, **{f"{path}/rows/{i}": rows[i] for i in rows.ids}}


def _table(tensors: Mapping[str, Tensor]) -> Rows | Pairs:
    pairs = _below(tensors, "pairs")
    return Pairs.of(pairs) if pairs else _table_rows(tensors)


def _table_rows(tensors: Mapping[str, Tensor]) -> Rows:
    rows = _below(tensors, "rows")
    return Rows(rows["default"], {int(i): t for i, t in rows.items() if i != "default"})


def _below(tensors: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    return {name[len(path) + 1 :]: t for name, t in tensors.items() if name.startswith(path + "/")}
