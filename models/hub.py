"""HubRepository: a model repository on the Hugging Face hub, or what of it is in this machine's cache.

Knows the hub's client, its cache (``HF_HOME``, ``HF_HUB_CACHE``) and its answers, each of which becomes one sentence;
not which files make up a model. Where the hub may not be asked (``HF_HUB_OFFLINE=1``, ``--offline``) or cannot be
reached, the cache is all there is, and what is missing there is named. Never downloads a pickle, nor runs one.

Cache layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.errors import CheckpointError

_HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<ending>[\w.-]+)|/(?P<file>.+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DEFAULT_REVISION = "main"


class Reach(enum.Enum):
    """Whether the hub is asked, and if not, why."""

    ONLINE = ""
    FLAG = "and --offline allows no download"
    ENVIRONMENT = "and HF_HUB_OFFLINE allows no download"
    UNREACHABLE = "and the hub cannot be reached to download it"


@dataclass(frozen=True, slots=True)
class HubId:
    """What a user called a model of the hub: ``org/name``, ``org/name:Q4_K_M`` or ``org/name/file.gguf``."""

    repository: str
    wanted: str | None  # the GGUF model of several

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        """None where ``text`` is no such name."""
        found = _HUB_ID.fullmatch(text)
        if found is None:
            return None
        file = found["file"]
        if file is None and found["ending"] is None:
            return None if text.lower().endswith(".gguf") else cls(text, None)
        if file is not None and (not file.lower().endswith(".gguf") or any(p in ("", "..") for p in file.split("/"))):
            return None
        return cls(found["repository"], file or found["ending"])


class HubRepository:
    """One revision of one repository. ``files`` are the names of its files, paths with slashes.

    Raises CheckpointError where it cannot be had.
    """

    def __init__(self, name: str, revision: str | None, *, offline: bool = False) -> None:
        from huggingface_hub import constants  # 0.2 s that local models need not wait for

        self.name = name
        self.revision = revision
        self._cache = Path(constants.HF_HUB_CACHE)
        self.reach = Reach.ONLINE
        if offline or constants.HF_HUB_OFFLINE:
            self.reach = Reach.FLAG if offline else Reach.ENVIRONMENT
        self.files = self._files()

    def __str__(self) -> str:
        return f"{self.name} at revision {self.revision}" if self.revision else self.name

    def download(self, names: Iterable[str]) -> Path:
        """Have the files ``names`` on this machine, with a progress bar; the directory they are in."""
        names = list(names)
        if self.reach is not Reach.ONLINE:
            snapshot = self._snapshot()
            missing = [name for name in names if snapshot is None or not (snapshot / name).exists()]
            if missing or snapshot is None:
                raise self.lacks(missing)
            return snapshot
        from huggingface_hub import snapshot_download

        with self._answers():
            return Path(snapshot_download(self.name, revision=self.revision, allow_patterns=[*map(_escaped, names)]))
        raise AssertionError  # what the hub answers is raised in there

    def safetensors_headers(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Name, dtype, shape and bytes of every tensor, by the first bytes of the files; no weights are downloaded."""
        from huggingface_hub import HfApi

        with self._answers():
            found = HfApi().get_safetensors_metadata(self.name, revision=self.revision)
            return [
                (name, str(one.dtype), tuple(one.shape), one.data_offsets[1] - one.data_offsets[0])
                for file in found.files_metadata.values()
                for name, one in file.tensors.items()
            ]
        raise AssertionError  # what the hub answers is raised in there

    def lacks(self, names: Iterable[str]) -> CheckpointError:
        """The error that ``names`` would have to be downloaded."""
        return CheckpointError(f"{', '.join(names)} of {self} is not in the cache ({self._cache}), {self.reach.value}")

    def _files(self) -> frozenset[str]:
        if self.reach is Reach.ONLINE:
            with self._answers():
                found = self._ask()
                if found is not None:
                    return found
            self.reach = Reach.UNREACHABLE
        snapshot = self._snapshot()
        if snapshot is None:
            where = "is not a local path, " if self.reach is Reach.UNREACHABLE else ""
            raise CheckpointError(f"{self} {where}is not in the cache ({self._cache}), {self.reach.value}")
        return frozenset(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())

    def _ask(self) -> frozenset[str] | None:
        """The names that the hub tells; None where it cannot be reached."""
        from huggingface_hub import HfApi, errors

        try:
            siblings = HfApi().model_info(self.name, revision=self.revision).siblings or []
        except (errors.HfHubHTTPError, errors.HFValidationError):
            raise
        except Exception:  # the HTTP client's: no connection, no answer in time
            return None
        return frozenset(sibling.rfilename for sibling in siblings)

    def _snapshot(self) -> Path | None:
        """The directory of this revision in the cache."""
        repository = self._cache / f"models--{self.name.replace('/', '--')}"
        commit = self.revision or _DEFAULT_REVISION
        if not _COMMIT.fullmatch(commit):
            try:
                commit = (repository / "refs" / commit).read_text().strip()
            except (OSError, ValueError):
                return None
        snapshot = repository / "snapshots" / commit
        return snapshot if snapshot.is_dir() else None

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Make one sentence of what the hub, or its client, says in here."""
        from huggingface_hub import errors

        try:
            yield
        except errors.GatedRepoError:
            problem = "is gated: accept its terms on the hub, and set HF_TOKEN to a token of your account"
        except errors.RepositoryNotFoundError:
            problem = "is neither a local path nor on the hub, or it is private: check the name, or set HF_TOKEN"
        except errors.RevisionNotFoundError:
            problem = "is not on the hub: check the revision, a branch, tag or full commit"
        except errors.HFValidationError as error:
            problem = f"is not a valid hub id: {error}"
        except errors.LocalEntryNotFoundError:
            problem = "could not be downloaded whole: the hub cannot be reached any more"
        except errors.HfHubHTTPError as error:
            problem = f"cannot be downloaded: the hub answered {error.response.status_code}"
        except Exception as error:  # of the disk, or of the HTTP client, whose classes change with its version
            problem = f"cannot be downloaded: {str(error) or type(error).__name__}"
        else:
            return
        raise CheckpointError(" ".join(f"{self} {problem}".split()))


def _escaped(name: str) -> str:
    """A pattern that matches ``name`` alone."""
    return re.sub(r"([*?[])", r"[\1]", name)
