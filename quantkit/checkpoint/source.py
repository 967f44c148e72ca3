"""Where a model comes from: a folder, or the hub's cache filled with just the files needed."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantkit.checkpoint.filenames import CONFIG, INDEX, SINGLE
from quantkit.checkpoint.files import sha256
from quantkit.checkpoint.reader import read_weight_map, shard_names
from quantkit.checkpoint.stored import Source
from quantkit.core.errors import HubError, InputError, IntegrityError, RefusedError, ResourceError

_ID = re.compile(
    r"(?:hf://)?(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>\w(?!.*\.\.)[\w./-]*))?", re.ASCII
)
HERE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
"""What fails on this machine; the network's own errors are OSErrors, too."""
_SHA256 = re.compile(r"[0-9a-f]{64}")

SIDE_FILES = (
    "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken",
    "README.md", "LICEN[CS]E*", "NOTICE*", "USE_POLICY*", "COPYING*",
)  # fmt: skip
# The hub's patterns let `*` match a slash, and an ignored file cannot be allowed again: this leaves
# out every subfolder but those that begin like additional_chat_templates/.
SUBFOLDERS = ("[!a]*/*", "a[!d]*/*")


def resolve(model: str, *, weights: bool = True, trust_remote_code: bool = False) -> Source:
    """The folder of MODEL: an existing path, or a hub id `org/name[@revision]`, fetched if need be.

    Without `weights` only the small files are fetched. Python files are fetched only with trust.

    Raises:
        InputError: neither a folder nor a hub id.
        RefusedError: the hub's model has no safetensors weights.
        HubError: gated, not found, offline, or incomplete.
        IntegrityError: a fetched file is not what its hash says.
    """
    path, shown = local_path(model), model[:200]
    if path is not None and path.is_dir():
        return Source(path)
    if path is not None:
        raise InputError(f"`{shown}` is a file", hint=f"its folder: {path.parent}")
    repo, revision = hub_id(model)
    return _from_hub(repo, revision, weights=weights, trust=trust_remote_code)


def hub_id(model: str) -> tuple[str, str | None]:
    """Repository and revision of a hub id, `org/name[@revision]`.

    Raises:
        InputError: it is none.
    """
    match = _ID.fullmatch(model)
    if match is None or model.startswith(("./", "../")):
        raise InputError(
            f"`{model[:200]}` is neither a folder nor a hub id",
            hint="the path of a model folder, or `org/name` or `org/name@revision` on the hub",
        )
    return match["id"], match["revision"]


def local_path(model: str) -> Path | None:
    """The path that `model` is, if it exists."""
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, unknown ~user, a null character
        return None


def _from_hub(repo: str, revision: str | None, *, weights: bool, trust: bool) -> Source:
    import huggingface_hub

    patterns = [*SIDE_FILES, *["*.py"] * trust, *[SINGLE] * weights]
    with hub_errors(repo, revision):
        folder = Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=patterns, ignore_patterns=[*SUBFOLDERS]
            )
        )
    _require(folder, [CONFIG], repo)
    if weights:
        shards = _fetch_weights(folder, repo)
        _check_blobs(folder, shards)
    return Source(folder, repo, folder.name)


def _fetch_weights(folder: Path, repo: str) -> list[str]:
    """The shards that the index names, fetched; `model.safetensors` came with the small files."""
    import huggingface_hub

    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise RefusedError(
                f"`{repo}` has no safetensors weights",
                why=f"there is neither `{SINGLE}` nor `{INDEX}`; pickles are never loaded",
                hint="a revision that has them, or convert the model where you trust it",
            )
        return [SINGLE]
    shards = shard_names(read_weight_map(folder))
    with hub_errors(repo, folder.name):
        huggingface_hub.snapshot_download(repo, revision=folder.name, allow_patterns=shards)
    _require(folder, shards, repo)
    return shards


def _require(folder: Path, names: list[str], repo: str) -> None:
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise HubError(
            f"`{repo}` has no `{missing[0]}`",
            why=f"{len(missing)} of the files that make a model are not in the repository",
            hint="another revision, or a model in the layout of transformers",
        )


def _check_blobs(folder: Path, shards: list[str]) -> None:
    """The hub's client checks a download's length only; the cache names large files by SHA-256."""
    for shard in shards:
        if not (folder / shard).is_symlink():
            continue  # a cache without links keeps no hash
        expected = (folder / shard).readlink().name
        if _SHA256.fullmatch(expected) and sha256((folder / shard).resolve()) != expected:
            raise IntegrityError(
                f"`{shard}` in the hub's cache is damaged",
                why=f"its SHA-256 is not {expected}",
                hint=f"rm {(folder / shard).resolve()} and start again",
            )


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """What the hub's client raises, in our words; gated is also "not found", so it is first."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(f"`{repo}` is no hub id", why=str(error), hint="org/name") from error
    except errors.GatedRepoError as error:
        raise HubError(
            f"`{repo}` is gated",
            why="its owner grants access one by one, and this account has none",
            hint="ask for access on the model's page, then `hf auth login` or HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"`{repo}` is not on the hub, nor a folder here",
            why="or it is private and this account may not see it",
            hint="check the name; for a private model `hf auth login` or HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"`{repo}` has no revision `{revision}`", hint=repo) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _unreachable(repo, error) from error
    except OSError as error:
        if error.errno in HERE:
            where = error.filename or "the hub's cache"
            raise ResourceError(
                f"cannot write `{where}`",
                why=error.strerror,
                hint="HF_HOME on a disk with space, where you may write",
            ) from error
        raise _failed(repo, error) from error
    except Exception as error:  # the HTTP and xet libraries below the client raise their own
        raise _failed(repo, error) from error


def _failed(repo: str, error: Exception) -> HubError:
    return HubError(
        f"fetching `{repo}` failed",
        why=(str(error) or type(error).__name__).splitlines()[0],
        hint="start again; files that are complete are kept",
    )


def _unreachable(repo: str, error: Exception) -> HubError:
    from huggingface_hub import constants

    have = f"`{repo}` is no folder here, not all of it is in the cache"
    if constants.HF_HUB_OFFLINE:
        return HubError(
            f"{have}, and the hub's client is set to be offline",
            hint="HF_HUB_OFFLINE=0, or a model folder",
        )
    return HubError(
        f"{have}, and the hub cannot be reached",
        why=str(error.__cause__ or error).splitlines()[0],
        hint="check the network, HF_ENDPOINT and proxies, or give a model folder",
    )
