"""A site's premises: its file, its data, and what it does with a run that asks for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pfedsim import data as datasets
from pfedsim.core.job import Worker
from pfedsim.core.scoring import ClientScore
from pfedsim.data.federation import ClientData, Federation
from pfedsim.data.task import Task
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.config import Config, Digests
from pfedsim.runs.config import read as read_config
from pfedsim.runs.setup import Plan, federate, plan
from pfedsim.sites import delivery
from pfedsim.sites.files import Ready, SiteFile, read
from pfedsim.sites.messages import Opening
from pfedsim.sites.sums import own

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = ("versions.pfedsim", "code.")  # what must be the hub's, or the method is another one


def load(file: Path) -> SitePremises:
    """The premises of a prepared site."""
    ready = read(Ready, file, "the site's file")
    if ready.site is None:
        raise Error(f"{file} is not a site's: it has no [site]")
    return SitePremises(ready.name, ready.federation.sites[ready.name], Path(ready.site.folder), ready.site)


@dataclass(eq=False)
class SitePremises:
    """A site with data on its disk. `folder`: where it keeps what its clients remember, their final models and its
    logs."""

    name: str
    clients: Collection[int]
    folder: Path
    site: SiteFile
    _plan: Plan | None = field(default=None, init=False)
    _samples: ClientData | None = field(default=None, init=False)

    @property
    def shares_scores(self) -> bool:
        return self.site.shares_scores

    def open(self, opening: Opening) -> tuple[Worker, list[str]]:
        """The worker, and how this site differs from the hub. A run may name neither code nor files of its own."""
        config = self._config(opening)
        planned = plan(config, Task.of(opening.data), opening.clients, opening.unseen)
        notes = manifest.drift(opening.made_with, manifest.made_with(planned.config))
        other = [note for note in notes if note.startswith(PACKAGE)]
        if other and not opening.allow_drift:
            raise Error(
                f"its pfedsim is not the hub's ({'; '.join(other)}); install the same version, or --allow-drift"
            )
        self._plan = planned
        self._samples = ClientData(self._federation(planned, opening), self.clients)
        return planned.worker(self._samples, simulated=True), notes

    def _federation(self, planned: Plan, opening: Opening) -> Federation:
        """This site's clients: of data that every site has, or of its own."""
        config = planned.config.model_copy(update={"digests": Digests()})
        if self.site.partition is not None:
            found = federate(config)
            _same_data(found.task, planned)
            return found
        data = datasets.read(self.site.data, self.site.data_dir, config.size)
        known = sorted(self.clients)
        return own(data, planned.task, known, opening.clients, config.test, config.partition_seed)

    def _config(self, opening: Opening) -> Config:
        """The run's configuration with this site's own data and device. Nothing that it names is imported before it
        is known to be ours."""
        site = {name: getattr(self.site, name) for name in ("data", "data_dir", "device")}
        site["partition"] = self.site.partition or "given"
        config = read_config(
            {**opening.config, **{name: value for name, value in site.items() if value is not None}}
        )
        if code := config.own_code():
            raise Error(
                f"it runs the methods and networks of the installed package only, not {next(iter(code.values()))!r}"
            )
        if config.pretrained is not None and Path(config.pretrained).suffix:
            raise Error(f"a run may not name a file of the site: pretrained = {config.pretrained!r}")
        return config

    def deliver(self, run: str, client: int, model: Tensor, score: ClientScore) -> None:
        """Writes a client's final model as an export, which `pfedsim predict` takes."""
        assert self._plan is not None
        assert self._samples is not None
        fill = self._samples.fill(
            client, max(self._plan.method.validation, self._plan.fed.settings.validation)
        )
        place = self.folder / "models" / run / f"client-{client:05d}"
        delivery.write(place, self._plan, client, model, score, fill)


def _same_data(here: Task, planned: Plan) -> None:
    """Refuses data that are not those of the run, and says first what a person would see."""
    there = planned.task
    for name in ("shape", "dtype", "classes", "columns", "mean", "std"):
        ours, theirs = getattr(here, name), getattr(there, name)
        if ours != theirs:
            raise Error(f"the data of this site have the {name} {ours}, the run's {theirs}"[:400])
    if here.digest != there.digest:
        raise Error(
            f"digests.data: the data of this site have {here.digest[:12]}..., the run's {there.digest[:12]}..."
        )
