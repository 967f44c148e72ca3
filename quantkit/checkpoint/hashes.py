"""SHA-256 of whole files, each taken once as long as the file stays the same, in threads."""

from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread

from quantkit.checkpoint.files import Fingerprint, changed, opened, sha256
from quantkit.checkpoint.threads import spare

_at_once = BoundedSemaphore(spare(4))
_one_start = Lock()


def hashing(path: Path, fingerprint: Fingerprint) -> Future[str]:
    """The hash of a file, 64 hex digits, which a thread computes from the first call on.

    Raises (by the result):
        IntegrityError: the file has another fingerprint by now.
        InputError, ResourceError: it cannot be read.
    """
    with _one_start:
        return _started(path, fingerprint)


@lru_cache(maxsize=4096)
def _started(path: Path, fingerprint: Fingerprint) -> Future[str]:
    found: Future[str] = Future()
    # a daemon, as a file of 100 GB must not keep a run that failed from ending
    Thread(target=_hash, args=(path, fingerprint, found), name="sha256", daemon=True).start()
    return found


def hashing_now(path: Path) -> Future[str]:
    """As `hashing`, of the file that lies there now.

    Raises:
        InputError: it is missing, or not a regular file.
    """
    with opened(path) as (_, fingerprint):
        return hashing(path, fingerprint)


def _digest(path: Path, fingerprint: Fingerprint) -> str:
    digest = sha256(path)
    with opened(path) as (_, after):
        if after != fingerprint:
            raise changed(path)
    return digest


def _hash(path: Path, fingerprint: Fingerprint, found: Future[str]) -> None:
    with _at_once:
        try:
            found.set_result(_digest(path, fingerprint))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            found.set_exception(error)
