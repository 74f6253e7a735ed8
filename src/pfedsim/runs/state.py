"""Convert a run's state to named tensors and back, without pickle and without loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pfedsim.core.method import Memory, ServerState
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.server import State
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor


NONE: dict[int, float] = {}  # marks an empty table, or a client with an empty memory


def parts(state: State) -> dict[str, Any]:
    """Every part of the state by path: a tensor, a number, or one client's row of pairs.
    States are immutable, so a part that is the same object in two states has not changed."""
    found: dict[str, Any] = {"server/round": state.server.round, "server/model": state.server.model}
    if state.server.personal is not None:
        found |= _rows("server/personal", state.server.personal)
    if state.server.steps:
        found["server/steps"] = state.server.steps
    found |= {f"server/moments/{name}": tensor for name, tensor in state.server.moments.items()}
    for name, value in state.server.extra.items():
        if isinstance(value, Rows):
            found |= _rows(f"server/extra/{name}", value)
        elif isinstance(value, Pairs):
            found |= {
                f"server/extra/{name}/pairs/none": NONE,
                **{f"server/extra/{name}/pairs/{i}": r for i, r in value.rows()},
            }
        else:
            found[f"server/extra/{name}"] = value
    for i, client in state.memories.items():
        if client.kept is not None:
            found[f"client/{i}/kept"] = client.kept
        elif not client.extra:
            found[f"client/{i}/none"] = NONE
        found |= {f"client/{i}/extra/{name}": t for name, t in client.extra.items()}
    if state.best is not None:
        found |= {f"best/{name}": part for name, part in parts(state.best).items()}
    return found


def tensor_of(part: Any) -> Tensor:
    """A part as a tensor. A row of pairs becomes two rows: the other clients, and their values."""
    import torch

    if isinstance(part, dict):
        others = sorted(part)
        return torch.tensor([others, [part[j] for j in others]], dtype=torch.float64)
    return torch.tensor(part) if isinstance(part, int) else part.detach().cpu().contiguous()


def to_tensors(state: State) -> dict[str, Tensor]:
    """Every tensor of the state by path."""
    return {name: tensor_of(part) for name, part in parts(state).items()}


def from_tensors(tensors: Mapping[str, Tensor]) -> State:
    """The inverse of `to_tensors`."""
    try:
        server, clients = _below(tensors, "server"), _below(tensors, "client")
        personal = _below(server, "personal")
        owned: dict[int, dict[str, Tensor]] = {}
        for path, tensor in clients.items():
            number, _, name = path.partition("/")
            owned.setdefault(int(number), {})[name] = tensor
        memories = {i: Memory(own.get("kept"), _below(own, "extra")) for i, own in sorted(owned.items())}
        extra = _below(server, "extra")
        names = dict.fromkeys(path.partition("/")[0] for path in extra)
        steps = _numbers(server["steps"]) if "steps" in server else {}
        made = {name: extra[name] if name in extra else _table(_below(extra, name)) for name in names}
        return State(
            ServerState(
                int(server["round"]),
                server["model"],
                _table_rows(personal) if personal else None,
                made,
                steps,
                _below(server, "moments"),
            ),
            memories,
            best=from_tensors(best) if (best := _below(tensors, "best")) else None,
        )
    except (KeyError, ValueError) as error:
        raise Error(f"these tensors are not a run's state: {error}") from error


def _rows(path: str, rows: Rows) -> dict[str, Tensor]:
    return {f"{path}/rows/default": rows.default, **{f"{path}/rows/{i}": rows[i] for i in rows.ids}}


def _table(tensors: Mapping[str, Tensor]) -> Rows | Pairs:
    pairs = _below(tensors, "pairs")
    if not pairs:
        return _table_rows(tensors)
    return Pairs({int(i): _numbers(row) for i, row in pairs.items() if i != "none"})


def _numbers(row: Tensor) -> dict[int, float]:
    """The inverse of `tensor_of` for numbers by client."""
    others, values = row.tolist()
    return dict(zip(map(int, others), values, strict=True))


def _table_rows(tensors: Mapping[str, Tensor]) -> Rows:
    rows = _below(tensors, "rows")
    return Rows(rows["default"], {int(i): t for i, t in rows.items() if i != "default"})


def _below(tensors: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    return {name[len(path) + 1 :]: t for name, t in tensors.items() if name.startswith(path + "/")}
