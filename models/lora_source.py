"""Where the files of a LoRA adapter are: a directory of this machine, or a repository of the Hugging Face hub.

Knows names and paths; reads no adapter and imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from models.errors import CheckpointError
from models.hub import HubId, HubRepository
from models.lora_config import CONFIG_FILE, PICKLE_FILE, WEIGHTS_FILE


def find_adapter(source: str, *, offline: bool = False) -> Path:
    """The directory of an adapter: ``source`` itself, or where the files of a hub id ``org/name`` have been downloaded.

    A path that exists wins over a hub id. Raises CheckpointError.
    """
    path = Path(source).expanduser()
    if source and path.is_dir():
        return path.absolute()
    hub_id = HubId.parse(source)
    if hub_id is None or hub_id.wanted is not None:
        raise CheckpointError(f"{source!r} is neither a directory nor a hub id of the form org/name")
    repository = HubRepository(hub_id.repository, None, offline=offline)
    if CONFIG_FILE not in repository.files:
        raise CheckpointError(f"{repository} has no {CONFIG_FILE}: it is no adapter in PEFT's layout")
    if WEIGHTS_FILE not in repository.files and PICKLE_FILE in repository.files:
        raise CheckpointError(
            f"{repository} has only {PICKLE_FILE}, a pickle, which can run code when it is loaded: convert it to "
            f"{WEIGHTS_FILE}"
        )
    return repository.download([CONFIG_FILE, WEIGHTS_FILE])
