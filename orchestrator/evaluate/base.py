"""Where a model lies before training: the reference policy of its cells, and a baseline."""

from pathlib import Path

from orchestrator import registry
from orchestrator.errors import CheckpointError


def base_model(path: str) -> Path:
    """The Hugging Face directory of a spec's `model.path`: a folder, a policy that ships with a
    backend (`micro:amber`), or a model of the hub that is in this machine's cache.

    Raises CheckpointError, saying how to get it, if it is not on this machine.
    """
    owner, colon, name = path.partition(":")
    if colon and owner in registry.names():
        shipped = registry.folder(owner) / "policies" / name
        if not shipped.is_dir():
            raise CheckpointError(f"backend '{owner}' ships no policy '{name}' ({shipped})")
        return shipped
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return folder.absolute()
    cached = _cached(path)
    if cached is None:
        raise CheckpointError(
            f"base model {path} is not on this machine, neither as a folder nor in the hub's "
            f"cache; fetch it where there is a network (hf download {path}), or name a folder in "
            "model.path"
        )
    return cached


def _cached(repository: str) -> Path | None:
    """The newest snapshot in the hub's cache that has a config.json; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
