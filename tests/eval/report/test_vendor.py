import hashlib
import json
from importlib.resources import files

VENDOR = files("quantkit.eval.report") / "vendor"


def test_the_libraries_are_the_published_files_with_their_licences() -> None:
    listed = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in listed] == ["d3", "@observablehq/plot"]
    licences = (VENDOR / "LICENSES.txt").read_text(encoding="utf-8")
    for entry in listed:
        content = (VENDOR / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert entry["file"] in licences
        assert entry["version"] in licences
    assert licences.count("Permission to use, copy, modify") == len(listed)


def test_they_stand_in_a_page_as_they_are() -> None:
    for name in ("d3.min.js", "plot.umd.min.js"):
        text = (VENDOR / name).read_text(encoding="utf-8")
        assert "</script" not in text.lower()
        assert "<!--" not in text
