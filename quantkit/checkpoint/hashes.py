"""SHA-256 of whole files, each taken once as long as the file stays the same, in threads."""

from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread

from quantkit.checkpoint.files import Fingerprint, changed, opened, sha256
from quantkit.checkpoint.threads import cores, spare

_beside = BoundedSemaphore(spare(4))
_waited_for = BoundedSemaphore(min(4, cores()))
_one_start = Lock()


def hashing(path: Path, fingerprint: Fingerprint, *, waited_for: bool = False) -> Future[str]:
    """The hash of a file, 64 hex digits, which a thread computes from the first call on.

    `waited_for`: as many at once as there are cores, as the caller has little else to do.

    Raises (by the result):
        IntegrityError: the file has another fingerprint by now.
        InputError, ResourceError: it cannot be read.
    """
    with _one_start:
        found = _started(path, fingerprint, waited_for=waited_for)
        if found.done() and found.exception():  # the disk may have recovered since
            _future.cache_clear()
            _started.cache_clear()
            found = _started(path, fingerprint, waited_for=waited_for)
        return found


@lru_cache(maxsize=4096)
def _future(_path: Path, _fingerprint: Fingerprint) -> Future[str]:
    return Future()


@lru_cache(maxsize=4096)
def _started(path: Path, fingerprint: Fingerprint, *, waited_for: bool) -> Future[str]:
    found = _future(path, fingerprint)
    at_once = _waited_for if waited_for else _beside
    # a daemon, as a file of 100 GB must not keep a run that failed from ending
    some = (path, fingerprint, found, at_once)
    Thread(target=_hash, args=some, name="sha256", daemon=True).start()
    return found


def hashing_now(path: Path, *, waited_for: bool = False) -> Future[str]:
    """As `hashing`, of the file that lies there now.

    Raises:
        InputError: it is missing, or not a regular file.
    """
    with opened(path) as (_, fingerprint):
        return hashing(path, fingerprint, waited_for=waited_for)


def _digest(path: Path, fingerprint: Fingerprint) -> str:
    digest = sha256(path)
    with opened(path) as (_, after):
        if after != fingerprint:
            raise changed(path)
    return digest


def _claimed(found: Future[str]) -> bool:
    """Whether the caller is to compute it, and no other thread."""
    with _one_start:
        return not (found.running() or found.done()) and found.set_running_or_notify_cancel()


def _hash(
    path: Path, fingerprint: Fingerprint, found: Future[str], at_once: BoundedSemaphore
) -> None:
    with at_once:
        if not _claimed(found):
            return
        try:
            found.set_result(_digest(path, fingerprint))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            found.set_exception(error)
