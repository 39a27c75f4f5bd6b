"""The store: objects behind an address, a folder or any URL that fsspec knows.

    <address>/<cell id>/<digest>.tar.gz   the files, written first
    <address>/<cell id>/<digest>.json     the manifest: without it, nothing is shared

An object is named by what it holds and is written once, so several people may write at once.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from orchestrator.errors import EnvironmentFault
from orchestrator.sharing.bundle import Bundle, BundleManifest, archive, unpack
from orchestrator.spec.redaction import HIDDEN, hide_userinfo

Answer = TypeVar("Answer")


class ResultStore:
    """Finished cells of several people, by id."""

    def __init__(self, address: str):
        """Raise EnvironmentFault for an address of a kind that cannot be opened here."""
        import fsspec

        self.shown = hide_userinfo(address)
        self._userinfo, _, _ = address.partition("://")[2].partition("/")[0].rpartition("@")
        self._files: Any
        try:
            protocol, _ = fsspec.core.split_protocol(address)
            local = {"auto_mkdir": True} if protocol in (None, "file", "local") else {}
            self._files, self._root = fsspec.core.url_to_fs(address, **local)
        except (ImportError, ValueError) as error:
            raise EnvironmentFault(f"{self.shown} cannot be opened: {error}") from error
        # Other people write to the store at the same time.
        self._files.use_listings_cache = False

    def manifests(self, cell_id: str) -> list[BundleManifest]:
        """Return what is shared of a cell, the one with most scores first, then the earliest.

        A manifest that is cut off, or of a newer format, is left out.
        """
        known = []
        for path in self._ask(lambda: self._listed(cell_id)):
            if path.endswith(".json"):
                try:
                    text = self._ask(self._files.cat_file, path)
                    known.append(BundleManifest.model_validate_json(text))
                except ValidationError:
                    continue
        return sorted(known, key=lambda each: (-each.num_scores, each.shared, each.digest))

    def is_empty(self) -> bool:
        """Return whether nothing is shared there, as where there is no such folder or bucket."""
        return not self._ask(lambda: self._listed(""))

    def put(self, bundle: Bundle) -> bool:
        """Write a bundle. Return False if the store already has the same bundle."""
        place = f"{self._root}/{bundle.manifest.cell}/{bundle.manifest.digest}"
        if self._ask(self._files.exists, f"{place}.json"):
            return False
        self._ask(self._files.pipe_file, f"{place}.tar.gz", archive(bundle.files))
        text = bundle.manifest.model_dump_json(indent=1) + "\n"
        self._ask(self._files.pipe_file, f"{place}.json", text.encode())
        return True

    def get(self, manifest: BundleManifest) -> Bundle:
        """Return what a manifest is of. Raise BundleFault if its archive is damaged."""
        path = f"{self._root}/{manifest.cell}/{manifest.digest}.tar.gz"
        return Bundle(manifest, unpack(self._ask(self._files.cat_file, path)))

    def _listed(self, cell_id: str) -> list[str]:
        try:
            return list(self._files.ls(f"{self._root}/{cell_id}".rstrip("/"), detail=False))
        except FileNotFoundError:
            return []

    def _ask(self, question: Callable[..., Answer], *words: object) -> Answer:
        """Return the store's answer. Raise EnvironmentFault with its message if it fails."""
        try:
            return question(*words)
        except Exception as error:  # each kind of store has errors of its own
            why = f"{type(error).__name__}: {error}"
            if self._userinfo:
                why = why.replace(self._userinfo, HIDDEN)
            raise EnvironmentFault(f"{self.shown} does not answer: {why}") from error
