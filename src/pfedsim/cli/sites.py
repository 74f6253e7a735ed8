"""`pfedsim sites`: runs across real sites, on NVIDIA FLARE."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pfedsim.cli import MARKED, stoppable
from pfedsim.cli.options import Grouped, with_settings
from pfedsim.cli.progress import screen
from pfedsim.errors import Error
from pfedsim.runs.config import Config

app = typer.Typer(
    help="Runs across real sites: provision, prepare, sums, agree, check, serve, run, status, local.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NEEDED = "runs across sites need NVIDIA FLARE, which is not installed: pip install 'pfedsim[sites]'"
OF_ONE_MACHINE = ("engine", "address", "workers", "time_limit", "track", "device", "state")
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="folder of a kit")]
Quorum = Annotated[
    float,
    typer.Option(
        "--quorum", min=0.01, max=1.0, help="share of the asked clients that must answer; default: 1"
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline", min=1.0, help="seconds after which a round goes on without those who are late"
    ),
]
Poll = Annotated[
    float,
    typer.Option("--poll", min=0.05, max=60.0, help="seconds between two questions of a site for work"),
]
Silence = Annotated[
    float,
    typer.Option("--silence", min=3.0, help="seconds without a sign of life after which a site is lost"),
]


@app.callback()
def _main() -> None:
    if find_spec("nvflare") is None:
        raise Error(NEEDED)


@app.command()
def provision(
    federation: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="who takes part")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder of the kits")] = Path("kits"),
) -> None:
    """Make a kit for the hub, each site and each admin; those that exist stay as they are."""
    from pfedsim.sites import files, kits

    made = kits.provision(files.read(files.FederationFile, federation, "the federation's file"), out)
    console = screen()
    for kit in made:
        _say(console, str(kit))
    if not made:
        _say(console, f"all kits are in {out} already")
    _say(console, f"keep {out / kits.AUTHORITY} offline: whoever has it can make kits")


@app.command()
def prepare(
    kit: Kit,
    settings: Annotated[
        Path, typer.Argument(metavar="SETTINGS.toml", help="a site's data, or the hub's folder for runs")
    ],
) -> None:
    """Complete a kit with its owner's settings: no code of others, no other components, no shell, no log streams."""
    from pfedsim.runs import config as configs
    from pfedsim.sites import kits

    ready = kits.prepare(kit, configs.load(settings))
    _say(
        screen(),
        f"{kit} is ready: pfedsim sites check {kit}, then pfedsim sites serve {kit} ({ready.name})",
    )


@app.command()
def sums(
    kit: Kit, out: Annotated[Path, typer.Option("--out", metavar="FILE", help="file to write")]
) -> None:
    """At a site with data of its own: write the sums from which a description of all data is made."""
    from pfedsim import data as datasets
    from pfedsim import durable
    from pfedsim.sites.kits import ready_of
    from pfedsim.sites.sums import sums as said

    ready = ready_of(kit)
    if ready.site is None:
        raise Error(f"{kit} is not a prepared kit of a site: pfedsim sites prepare {kit} SETTINGS.toml")
    data = datasets.read(ready.site.data, ready.site.data_dir)
    durable.write(out, said(data, ready.name).encode())
    _say(screen(), f"{out} has sums over {len(data.y)} samples and no sample; send it to the hub")


@app.command()
def agree(
    files: Annotated[list[Path], typer.Argument(metavar="SUMS...", help="the sums of all sites")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="the description to write")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="name of the data")] = "federation",
) -> None:
    """At the hub: make the description of the data from the sums of all sites."""
    from pfedsim.sites import sums as described

    task = described.agreed(files, name)
    described.save(task, out)
    kind = f"{len(task.classes)} classes, samples of {' x '.join(map(str, task.shape))}"
    _say(screen(), f"{out}: {len(files)} sites, {kind}")


@app.command()
def serve(kit: Kit) -> None:
    """Run the hub or a site from its prepared kit, until it is stopped."""
    from pfedsim.sites.serve import serve as become

    become(kit)


@app.command()
def check(kit: Kit) -> None:
    """Check a prepared kit: certificate, policy, data, versions, and whether the hub answers."""
    from pfedsim.sites.checks import checks

    console, bad = screen(), 0
    for name, wrong, said in checks(kit):
        bad += wrong
        _say(console, f"{'WRONG' if wrong else 'ok   '}  {name}: {said}")
    if bad:
        raise typer.Exit(2)


@app.command(cls=Grouped)
@with_settings(*OF_ONE_MACHINE)
def run(
    config: Config,
    hub: Annotated[
        Path, typer.Option("--hub", metavar="KIT", help="the hub's prepared kit, on this machine")
    ],
    admin: Annotated[Path, typer.Option("--admin", metavar="KIT", help="an admin's kit (role lead)")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="name of the run's folder")],
    quorum: Quorum = 1.0,
    deadline: Deadline = None,
    poll: Poll = 0.2,
    silence: Silence = 15.0,
    allow_drift: Annotated[
        bool, typer.Option("--allow-drift", help="sites may have another version of pfedsim than the hub")
    ] = False,
) -> None:
    """Run one method across the sites, or go on with the run of that name. What is stopped or killed goes on from its
    last checkpoint."""
    from pfedsim.sites.admin import Admin
    from pfedsim.sites.chain import Chain, How
    from pfedsim.sites.files import checked_name
    from pfedsim.sites.kits import ready_of

    ready = ready_of(hub)
    if ready.hub is None:
        raise Error(f"{hub} is not a prepared kit of a hub: pfedsim sites prepare {hub} SETTINGS.toml")
    console, runs = screen(), Path(ready.hub.runs)
    how = How(quorum, deadline, poll, silence, allow_drift)
    with (
        stoppable(lambda: "; the run goes on at the sites: the same command joins it again"),
        closing(Admin(admin)) as session,
    ):
        chain = Chain(session, runs, checked_name(name), config, how, lambda said: _say(console, said))
        _finished(chain.drive(), console)


@app.command(cls=Grouped)
@with_settings(*OF_ONE_MACHINE)
def local(
    config: Config,
    sites: Annotated[int, typer.Option("--sites", min=1, max=64, help="number of sites; default: 4")] = 4,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="folder for kits, sites and runs")
    ] = Path("sites-local"),
    poll: Poll = 0.2,
) -> None:
    """Run one method across sites that are all processes on this machine, with kits and TLS, to see it work."""
    from pfedsim.sites.chain import How
    from pfedsim.sites.local import run_local

    console = screen()
    with stoppable(lambda: f"; what was written is in {out}"):
        _finished(run_local(config, sites, out, How(poll=poll), lambda said: _say(console, said)), console)


@app.command()
def status(
    admin: Annotated[Path, typer.Option("--admin", metavar="KIT", help="an admin's kit")],
    hub: Annotated[
        Path | None, typer.Option("--hub", metavar="KIT", help="the hub's prepared kit, on this machine")
    ] = None,
) -> None:
    """Show which sites are connected and, at the hub, how far its runs are."""
    from pfedsim.sites.admin import Admin
    from pfedsim.sites.chain import progress
    from pfedsim.sites.kits import ready_of

    console, session = screen(), Admin(admin)
    try:
        here = session.sites()
    finally:
        session.close()
    table = Table("site", "clients", "connected")
    for site, clients in session.federation.sites.items():
        table.add_row(site, ", ".join(map(str, clients)), "yes" if site in here else "no")
    console.print(table)
    if hub is not None and (ready := ready_of(hub)).hub is not None:
        runs = Table("run", "round", "of", "jobs", "state")
        for row in progress(Path(ready.hub.runs)):
            runs.add_row(*row)
        console.print(runs)


def _finished(folder: Path, console: Console) -> None:
    """Prints a finished run as `pfedsim run` does."""
    from pfedsim.cli.show import print_runs
    from pfedsim.runs.reader import Run

    result = Run(folder)
    print_runs([result], console)
    _say(console, f"written to {folder}; each site has its clients' models in its own folder")
    if result.incidents:
        raise typer.Exit(MARKED)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
