"""The model card of an export: evaluation, input and output, use and provenance."""

from __future__ import annotations

from pfedsim import escape
from pfedsim.export.config import NETWORK, ONNX, PT2, ExportConfig

FIGURES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "loss": "loss",
}


def card(config: ExportConfig) -> str:
    """The contents of README.md, with the front matter that model hubs read."""
    run, served, after = config.run, config.test.get("served", {}), config.test.get("finetuned", {})
    who = f"client {run['client']}" + (f" ({run['name']})" if "name" in run else "")
    method, data, who = (escape.markdown(words) for words in (run["method"], run["data"], who))
    bytes_in = ", bytes 0 to 255" if config.input.dtype == "uint8" else ""
    lines = [
        "---",
        "library_name: pfedsim",
        "tags: [federated-learning, personalised, classification]",
        "---",
        f"# {method} on {data}: the model of {who}",
        "",
        f"The personal model of {who}, one of {run['clients']}, after {run['rounds']} rounds of "
        f"{method} (seed {run['seed']}). It was trained for this client's data and may perform poorly on "
        "other data.",
        "",
        "## Evaluation",
        f"On the client's {served.get('samples', 0)} test samples, as reported by the run:",
        "",
        "| metric | this model |" + (f" after {after['epochs']} more local epochs |" if after else ""),
        "|---|---:|" + ("---:|" if after else ""),
    ]
    for figure, words in FIGURES.items():
        cells = [_cell(scores.get(figure)) for scores in (served, after) if scores]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Input and output",
        f"Samples of shape {tuple(config.input.shape)} ({config.input.dtype}{bytes_in}, channels first). "
        f"The model normalises them with mean {config.input.mean} and std {config.input.std}. "
        f"Classes: {escape.markdown(', '.join(config.classes))}.",
        "",
        "## Use",
        *_use(config),
        "",
        "## Provenance",
        *(f"- {name.replace('_', ' ')}: {escape.markdown(value)}" for name, value in run.items()),
    ]
    return "\n".join(lines) + "\n"


def _use(config: ExportConfig) -> list[str]:
    trust = ", trust=True" if config.network.startswith(NETWORK) else ""
    lines = [
        "```python",
        "import pfedsim",
        "",
        f'model = pfedsim.load("."{trust})',
        "model.predict(x), model.probabilities(x)",
        "```",
    ]
    if trust:
        call = ", ".join(f"{name}={value!r}" for name, value in config.arguments.items())
        name = config.network.partition(":")[2]
        lines += [
            "",
            f"Without pfedsim, on normalised samples: `{name}({call})` in `{NETWORK}`, with the tensors of "
            "`model.safetensors`.",
        ]
    if ONNX in config.files:
        lines += [
            "",
            f'`{ONNX}`: `onnxruntime.InferenceSession("{ONNX}").run(["scores"], {{"x": x}})`, samples as above.',
        ]
    if PT2 in config.files:
        lines += ["", f'`{PT2}`: `torch.export.load("{PT2}").module()(x)`, samples as above.']
    return lines


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
