"""Push an exported model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from pfedsim.errors import Error
from pfedsim.export.read import read_config


def push(folder: Path, repository: str) -> str:
    """Upload the export `folder` to `owner/name`, which is created as private if it is new; return its URL."""
    try:
        import huggingface_hub
    except ImportError:
        raise Error("pushing to a hub needs huggingface_hub: pip install 'pfedsim[hub]'") from None
    run = read_config(folder).run
    api = huggingface_hub.HfApi()
    message = f"{run['method']} on {run['data']}, client {run['client']}"
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:  # the library has many classes for a missing token, permission or network
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Error(f"{folder} could not be pushed to {repository!r}: {first}") from error
    return f"{api.endpoint}/{repository}"
