import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.scene import Case, Scene

SECONDS = 5.0
BYTES = 1.5 * 2**30
LONGEST = 2000
"""Characters of all that is said; a message does not repeat what it was given."""


class Server:
    """The process that runs command lines; see server.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, argv: list[str], home: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "cwd": str(home)}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all cases: what takes seconds is imported once."""
    running = Server()
    yield running
    running.close()


@pytest.fixture
def scene(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Scene:
    """A sound model in a place of its own."""
    for name in ("here", "tmp", "cache"):
        (tmp_path / name).mkdir()
    shutil.copytree(tiny_checkpoint(), tmp_path / "here" / "model")
    return Scene(tmp_path / "here")


@pytest.fixture
def refused(scene: Scene, server: Server) -> Callable[[Case], None]:
    """Asserts that a case ends as it should."""

    def check(case: Case) -> None:
        argv = case.spoil(scene) or case.argv
        before = tree(scene.home)
        found = server.run(list(argv), scene.home.parent)
        faults = list(faults_of(case, found, "--json" in argv))
        assert not faults, (faults, found)
        after = tree(scene.home)
        new = {name for name in after if before.get(name) != after[name]}
        done = found["code"] == 0
        assert not {name for name in new if not (done and name.startswith("out/"))}
        assert not before.keys() - after.keys()
        assert not list((scene.home.parent / "tmp").iterdir())

    return check


def faults_of(case: Case, found: dict[str, Any], as_json: bool = False) -> Iterator[str]:
    """What is not as promised; of a result in JSON no words are looked for."""
    said = found["err"]
    if found["cpu"] > SECONDS:
        yield f"{found['cpu']:.1f} s"
    if found["peak"] > BYTES:
        yield f"{found['peak']:,} bytes"
    if found["code"] not in case.codes:
        yield f"exit code {found['code']}, not {case.codes}"
    if found["code"] == 0 or as_json:
        return
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if len(errors) != 1:
        yield f"{len(errors)} errors are told"
    if "Traceback" in said or "internal error" in said:
        yield "a traceback"
    if not re.search(r"^try: \S", said, re.MULTILINE):
        yield "no remedy"
    if len(said) > LONGEST:
        yield f"{len(said):,} characters"
    yield from (f"`{word}` is not named" for word in case.says if word not in said)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file in a folder, with what changes when it is written."""
    paths = sorted(p for p in folder.rglob("*") if p.name != ".probe")
    return {
        str(p.relative_to(folder)): (p.lstat().st_mtime_ns, p.lstat().st_size)
        for p in paths
        if not p.is_dir()
    }
