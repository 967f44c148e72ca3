"""The source of a model: a folder, or the hub's cache filled with only the files needed."""

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
"""Errors of the local disk, as opposed to the network's, which are OSErrors, too."""
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
        IntegrityError: a fetched file does not match its hash.
    """
    path = check_name(model)
    if path is not None:
        return Source(path)
    repo, revision = hub_id(model)
    return _from_hub(repo, revision, weights=weights, trust=trust_remote_code)


def check_name(model: str) -> Path | None:
    """The folder that MODEL names, or None if it is a hub id; nothing is fetched.

    Raises:
        InputError: neither a folder nor a hub id.
    """
    path = local_path(model)
    if path is not None and not path.is_dir():
        raise InputError(f"`{model[:200]}` is a file", hint=f"pass its folder: {path.parent}")
    if path is None:
        hub_id(model)
    return path


def hub_id(model: str) -> tuple[str, str | None]:
    """Repository and revision of a hub id, `org/name[@revision]`.

    Raises:
        InputError: `model` is not a hub id.
    """
    match = _ID.fullmatch(model)
    if match is None or model.startswith(("./", "../")):
        raise InputError(
            f"`{model[:200]}` is neither a folder nor a hub id",
            hint="pass a model folder, or `org/name` or `org/name@revision` on the hub",
        )
    return match["id"], match["revision"]


def local_path(model: str) -> Path | None:
    """`model` as a path; None where that does not exist."""
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
                f"`{repo}` contains no safetensors weights",
                why=f"neither `{SINGLE}` nor `{INDEX}` exists; quantkit never loads pickles",
                hint="use a revision that contains them, or convert the weights if you trust them",
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
            f"`{repo}` contains no `{missing[0]}`",
            why=f"{len(missing)} required files of the model are not in the repository",
            hint="use another revision, or a model for transformers",
        )


def _check_blobs(folder: Path, shards: list[str]) -> None:
    """Compare shards with their SHA-256, by which the cache names them; the client does not."""
    for shard in shards:
        if not (folder / shard).is_symlink():
            continue  # without links, the cache does not record the hash
        expected = (folder / shard).readlink().name
        if _SHA256.fullmatch(expected) and sha256((folder / shard).resolve()) != expected:
            raise IntegrityError(
                f"`{shard}` in the hub's cache is corrupt",
                why=f"its SHA-256 is not {expected}",
                hint=f"rm {(folder / shard).resolve()} and run again",
            )


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Turn errors of the hub's client into quantkit's.

    The order matters: a gated repository is also "not found", and an offline one an OSError.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(
            f"`{repo}` is not a valid hub id", why=str(error), hint="pass org/name"
        ) from error
    except errors.GatedRepoError as error:
        raise HubError(
            f"`{repo}` is gated",
            why="its owner must grant access, and this account has none",
            hint="request access on the model's page, then run `hf auth login` or set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"`{repo}` is neither on the hub nor a local folder",
            why="or it is private, and this account has no access",
            hint="check the name; for a private model, run `hf auth login` or set HF_TOKEN",
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
                hint="set HF_HOME to a writable folder on a disk with free space",
            ) from error
        raise _failed(repo, error) from error
    except Exception as error:  # the HTTP and xet libraries below the client raise their own
        raise _failed(repo, error) from error


def _failed(repo: str, error: Exception) -> HubError:
    return HubError(
        f"fetching `{repo}` failed",
        why=(str(error) or type(error).__name__).splitlines()[0],
        hint="run again; complete files are kept",
    )


def _unreachable(repo: str, error: Exception) -> HubError:
    from huggingface_hub import constants

    have = f"`{repo}` is neither a local folder nor complete in the cache"
    if constants.HF_HUB_OFFLINE:
        return HubError(
            f"{have}, and the hub's client is in offline mode",
            hint="set HF_HUB_OFFLINE=0, or pass a model folder",
        )
    return HubError(
        f"{have}, and the hub cannot be reached",
        why=str(error.__cause__ or error).splitlines()[0],
        hint="check the network, HF_ENDPOINT and proxies, or pass a model folder",
    )
