"""Fetch the page's chart libraries again, as vendor.json names them, and check every byte.

    python tools/vendor.py

`npm pack` fetches the published archives; their integrity and the SHA-256 of the file taken out
must be those of vendor.json, so a newer version is a change of that file first.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

VENDOR = Path(__file__).parents[1] / "eval" / "report" / "vendor"


def fetch(entry: dict[str, str], folder: Path) -> bytes:
    """The library's file out of its archive, both checked."""
    package = f"{entry['name']}@{entry['version']}"
    command = ["npm", "pack", package, "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - names are our own
    (archive,) = folder.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != entry["integrity"]:
        sys.exit(f"{package}: its integrity is sha512-{digest}, not {entry['integrity']}")
    with tarfile.open(archive) as packed:
        member = packed.extractfile(entry["member"])
        content = member.read() if member else b""
    found = hashlib.sha256(content).hexdigest()
    if found != entry["sha256"]:
        sys.exit(f"{package} {entry['member']}: its SHA-256 is {found}, not {entry['sha256']}")
    return content


def main() -> None:
    """Replace each library by the published one."""
    for entry in json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8")):
        with TemporaryDirectory() as folder:
            content = fetch(entry, Path(folder))
        target = VENDOR / entry["file"]
        same = target.is_file() and target.read_bytes() == content
        target.write_bytes(content)
        print(f"{entry['name']} {entry['version']}: {'as it was' if same else 'replaced'}")


if __name__ == "__main__":
    main()
