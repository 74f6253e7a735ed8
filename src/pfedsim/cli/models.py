"""`pfedsim export` and `pfedsim predict`: clients' models, taken away and used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedsim.cli.progress import screen
from pfedsim.errors import Error


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="the folder to write; with --all, a folder in it for each client"
        ),
    ],
    client: Annotated[int | None, typer.Option("--client", metavar="N", help="whose model")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="every client's")] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="also model.onnx, checked on the client's test samples")
    ] = False,
    pt2: Annotated[
        bool, typer.Option("--pt2", help="also model.pt2 by torch.export, checked alike")
    ] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="also the client's test samples, as samples.npz")
    ] = False,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="where the data set lies now")
    ] = None,
    push: Annotated[
        str | None, typer.Option("--push", metavar="OWNER/NAME", help="upload it to the Hugging Face hub")
    ] = None,
) -> None:
    """Write a client's model as a folder of its own: safetensors, config, model card, and programs for
    other runtimes."""
    if (client is None) != everyone:
        raise Error("say whose model: --client N, or --all")
    if push is not None and everyone:
        raise Error("--push uploads one client's model; name it with --client")
    from pfedsim.export.write import export as carry_out
    from pfedsim.export.write import held
    from pfedsim.runs.reader import Run

    loaded, console = Run(run), screen()
    federation = held(loaded, data_dir) if onnx or pt2 or samples else None
    for number in range(loaded.summary["clients"]) if client is None else [client]:
        place = out if client is not None else out / f"client-{number:05d}"
        written = carry_out(
            loaded, number, place, federation=federation, onnx=onnx, pt2=pt2, samples=samples
        )
        console.print(str(written), highlight=False, soft_wrap=True)
    if push is not None:
        from pfedsim.export.hub import push as upload

        console.print(upload(out, push), highlight=False, soft_wrap=True)


def predict(
    model: Annotated[Path, typer.Argument(metavar="OUT", help="folder of an exported model")],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="pictures, folders of pictures, one .csv or one .npz with x"
        ),
    ],
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="table, csv or json")] = "table",
    resize: Annotated[bool, typer.Option("--resize", help="bring pictures to the model's size")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="run the network.py that the export brings")
    ] = False,
) -> None:
    """Classes and probabilities by an exported model."""
    if form not in ("table", "csv", "json"):
        raise Error(f"--format {form!r}: it is table, csv or json")
    from pfedsim.export import samples
    from pfedsim.export.read import load
    from pfedsim.report.predictions import Predictions

    loaded = load(model, trust)
    found = samples.read(loaded, inputs, resize)
    result = Predictions(found.names, loaded.classes, loaded.probabilities(found.x).tolist(), found.labels)
    if form == "table":
        console = screen()
        console.print(result.table())
        if result.right is not None:
            share = f"{result.right} of {len(found.names)} as labelled"
            console.print(
                f"{share}: accuracy {100 * result.right / len(found.names):.2f}%", highlight=False
            )
    else:
        print(result.csv() if form == "csv" else result.json(), end="" if form == "csv" else "\n")
