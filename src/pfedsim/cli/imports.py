"""`pfedsim import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedsim.cli.progress import reading, say_data, screen
from pfedsim.data import check_name
from pfedsim.errors import Error


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="a .json, .npz or .npy file with positions, or a folder with train/0.npz, test/0.npz",
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="NAME", help="the data set that it divides: a name or a file")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="the partition file to write (default: NAME-imported.json)"
        ),
    ] = None,
    test: Annotated[
        float,
        typer.Option(
            "--test", metavar="X", help="share for testing, if the source does not divide train from test"
        ),
    ] = 0.5,
    partition_seed: Annotated[
        int,
        typer.Option("--partition-seed", min=0, max=2**32 - 1, metavar="N", help="seed of that division"),
    ] = 42,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="folder of the data sets (default: $PFEDSIM_DATA, else ./data)",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option("--size", min=1, metavar="N", help="rescale images to this many pixels a side"),
    ] = None,
) -> None:
    """Turn another program's partition (PFLlib, FL-bench, Flower) into a partition file for --partition."""
    place = out or Path(f"{Path(data).stem}-imported.json")
    if place.suffix != ".json":
        raise Error(f"--out {place}: a partition file ends in .json")
    if place.exists():
        raise Error(f"{place} exists; choose another --out")
    if not 0 < test < 1:
        raise Error(f"--test {test:g}: it should be a share between 0 and 1")
    check_name(data, data_dir)
    if not source.exists():
        raise Error(f"there is no file or folder {source}")
    from pfedsim import data as datasets
    from pfedsim.data import imported
    from pfedsim.data.federation import Federation
    from pfedsim.report.data import summary

    console = screen()
    with reading(console) as tell:
        samples = datasets.read(data, data_dir, size, tell)
    partition, notes = imported.read(source, samples, test, partition_seed)
    partition.save(place)
    federation = Federation(samples, partition)
    say_data(console, data, federation)
    console.print(summary(federation), highlight=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    console.print(
        f"written to {place}, digest {partition.digest[:12]}; pfedsim run --data {data} --partition {place}",
        highlight=False,
        soft_wrap=True,
    )
