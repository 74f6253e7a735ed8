"""config.json of an exported model: all that is needed to rebuild it, feed it and know where it comes
from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TENSORS, NETWORK, ONNX, PT2 = "model.safetensors", "network.py", "model.onnx", "model.pt2"
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class Input(BaseModel):
    """One sample as the model takes it; bytes are brought to 0..1 before mean and std."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: list[Annotated[int, Field(ge=1)]]
    dtype: str
    mean: list[float]
    std: list[Annotated[float, Field(gt=0)]]
    fill: list[float] | None = None
    """what stands for a missing value of each channel at this client; None: there must be none"""
    columns: list[str] | None = None
    """what the numbers of a table's row are called, in their order, where the data said it"""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        channels = (self.shape or [0])[0]
        if {len(self.mean), len(self.std), channels if self.fill is None else len(self.fill)} != {channels}:
            raise ValueError(
                "mean and std must hold one number for each channel of the shape, and fill where there "
                "is one"
            )
        if self.columns is not None and [len(self.columns)] != self.shape:
            raise ValueError("columns must hold one name for each number of a sample")
        return self


class ExportConfig(BaseModel):
    """What config.json holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["pfedsim-model/1"] = "pfedsim-model/1"
    network: str = Field(pattern=rf"^([a-z0-9_]+|{NETWORK}:[A-Za-z_][A-Za-z0-9_]*)$")
    """a network of pfedsim by name, or the class inside network.py"""
    arguments: dict[str, Any]
    """what the network's class is called with"""
    head: str
    classes: list[str] = Field(min_length=1)
    input: Input
    test: dict[str, Any]
    """the run's own scores of this client on its test part: as served (this model) and after local
    epochs"""
    run: dict[str, Any]
    """which run, which client, and the digests of configuration, data, partition and models"""
    checked: dict[str, Any]
    """how far the exported programs' scores lie from the model's, at most, over so many real samples"""
    files: dict[FileName, str]
    """sha256 of each file"""
