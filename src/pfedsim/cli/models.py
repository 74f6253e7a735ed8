"""`pfedsim export` and `pfedsim predict`: export a client's model and use it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pfedsim import escape
from pfedsim.cli import MARKED
from pfedsim.cli.progress import screen
from pfedsim.errors import Error


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="the folder to write; with --all, it gets a folder for each client"
        ),
    ],
    client: Annotated[
        str | None, typer.Option("--client", metavar="N", help="export this client, by its number or name")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="export every client")] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="also write model.onnx, checked on the client's test samples")
    ] = False,
    pt2: Annotated[
        bool, typer.Option("--pt2", help="also write model.pt2 (torch.export), checked the same way")
    ] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="also write the client's test samples as samples.npz")
    ] = False,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="folder of the data sets, if it has moved"),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="run the code of the run's own network, if it has one")
    ] = False,
    push: Annotated[
        str | None, typer.Option("--push", metavar="OWNER/NAME", help="upload it to the Hugging Face Hub")
    ] = None,
) -> None:
    """Export a client's model to a folder: safetensors, config and model card, optionally ONNX or PT2."""
    if (client is None) != everyone:
        raise Error("choose a model: --client N, or --all")
    if push is not None and everyone:
        raise Error("--push uploads one client's model; name it with --client")
    from pfedsim.export import write
    from pfedsim.plugin import described
    from pfedsim.runs.reader import Run

    loaded, console = Run(run, trust=trust), screen()
    if trust and (network := loaded.config.own_code().get("model")):
        console.print(f"running the code of {described(network)}", highlight=False, soft_wrap=True)
    federation = write.load_federation(loaded, data_dir) if onnx or pt2 or samples else None
    missing = sorted(loaded.index.get("missing", ())) if client is None else []
    names = loaded.client_names()
    numbers = range(loaded.summary["clients"]) if client is None else [loaded.number_of(client)]
    for number in (n for n in numbers if n not in missing):
        place = out if client is not None else out / f"client-{number:05d}"
        written = write.export(
            loaded, number, place, federation=federation, onnx=onnx, pt2=pt2, samples=samples
        )
        who = "" if names is None else f": {names[number]}"
        console.print(f"{written}{who if client is None else ''}", highlight=False, soft_wrap=True)
    if missing:
        absent = ", ".join(str(n) if names is None else names[n] for n in missing)
        console.print(
            f"no model of clients {absent}: events.jsonl says why", highlight=False, soft_wrap=True
        )
        raise typer.Exit(MARKED)
    if push is not None:
        from pfedsim.export.hub import push as upload

        console.print(upload(out, push), highlight=False, soft_wrap=True)


def predict(
    model: Annotated[Path, typer.Argument(metavar="OUT", help="folder of an exported model")],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="images, folders of images, a .npz with x, or a file of the table",
        ),
    ],
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="table, csv or json")] = "table",
    resize: Annotated[
        bool, typer.Option("--resize", help="rescale images to the model's input size")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help="run the export's network.py")] = False,
) -> None:
    """Predict classes and probabilities with an exported model."""
    if form not in ("table", "csv", "json"):
        raise Error(f"--format {form!r}: it should be table, csv or json")
    from pfedsim.export import samples
    from pfedsim.export.read import load
    from pfedsim.report.predictions import Predictions

    loaded = load(model, trust)
    found = samples.read(loaded, inputs, resize)
    for warning in found.warnings:
        print(f"pfedsim: {escape.visible(warning)}", file=sys.stderr)
    result = Predictions(found.names, loaded.classes, loaded.probabilities(found.x).tolist(), found.labels)
    if form == "table":
        console = screen()
        console.print(result.table())
        if result.right is not None:
            share = f"{result.right} of {result.scored} correct"
            console.print(f"{share}: accuracy {100 * result.right / result.scored:.2f}%", highlight=False)
    else:
        print(result.csv() if form == "csv" else result.json(), end="" if form == "csv" else "\n")
