"""config.json of an exported model: how to rebuild it, its input, and its provenance."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TENSORS, NETWORK, ONNX, PT2 = "model.safetensors", "network.py", "model.onnx", "model.pt2"
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class Input(BaseModel):
    """The model's input. Bytes are scaled to 0..1 before mean and std are applied."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: list[Annotated[int, Field(ge=1)]]
    dtype: str
    mean: list[float]
    std: list[Annotated[float, Field(gt=0)]]
    fill: list[float] | None = None
    """the value for missing cells of each channel at this client; None: there must be no missing cells"""
    columns: list[str] | None = None
    """the names of a table's columns, in order, if known"""
    recipe: dict[str, Any] | None = None
    """how rows of the original table become samples"""
    recipe_digest: str | None = None
    ranges: dict[str, list[float]] | None = None
    """by column of which this client had values, its smallest and largest number"""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        channels = (self.shape or [0])[0]
        if {len(self.mean), len(self.std), channels if self.fill is None else len(self.fill)} != {channels}:
            raise ValueError(
                "mean, std and, if given, fill must hold one number for each channel of the shape"
            )
        if self.columns is not None and [len(self.columns)] != self.shape:
            raise ValueError("columns must hold one name for each number of a sample")
        return self


class ExportConfig(BaseModel):
    """The contents of config.json, which also holds the sha256 of all this."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["pfedsim-model/2"] = "pfedsim-model/2"
    network: str = Field(pattern=rf"^([a-z0-9_]+|{NETWORK}:[A-Za-z_][A-Za-z0-9_]*)$")
    """the name of a pfedsim network, or the class in network.py"""
    changed_by: str | None = None
    """the pfedsim method that changes the network, with its options, if one does"""
    arguments: dict[str, Any]
    """the arguments of the network's class"""
    head: str
    classes: list[str] = Field(min_length=1)
    input: Input
    test: dict[str, Any]
    """the run's scores of this client on its test part: as served (this model) and after local epochs"""
    run: dict[str, Any]
    """the run, the client, and the digests of configuration, data, partition and models"""
    checked: dict[str, Any]
    """the largest difference between the exported programs' scores and the model's, and the number of samples"""
    files: dict[FileName, str]
    """sha256 of each file"""
    samples: str | None = None
    """sha256 of samples.npz, which may be deleted before the export is shared"""
