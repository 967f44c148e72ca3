import json
import os
import subprocess
import sys
from pathlib import Path

from quantkit.calibration.text import DEFAULT

ROOT = Path(__file__).resolve().parents[2]


def test_shipped_texts_are_what_the_script_builds(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "tools.calibration.build", str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "random"},
    )
    built = tmp_path / "quantkit" / "calibration" / "text" / "default.jsonl"
    assert built.read_bytes() == DEFAULT.read_bytes()
    smoke = (tmp_path / "eval" / "smoke.jsonl").read_bytes()
    assert smoke == (ROOT / "eval" / "smoke.jsonl").read_bytes()


def test_no_run_of_the_smoke_text_is_calibrated_on() -> None:
    def runs(path: Path) -> set[str]:
        records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        texts = (
            text
            for record in records
            for text in [record.get("text"), *(m["content"] for m in record.get("messages", ()))]
            if text
        )
        return {text[i : i + 50] for text in texts for i in range(len(text) - 49)}

    smoke = runs(ROOT / "eval" / "smoke.jsonl")
    assert len(smoke) > 25_000
    assert not smoke & runs(DEFAULT)


def test_written_part_is_large() -> None:
    folder = ROOT / "quantkit" / "calibration" / "text" / "written"
    assert sum(path.stat().st_size for path in folder.glob("*.txt")) >= 110_000
