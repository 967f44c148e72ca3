import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

Call = Callable[..., tuple[int, str, str]]


def spoiled(folder: Path, into: Path, count: int) -> str:
    """A copy in which the first scales of some linears are NaN."""
    copy = shutil.copytree(folder, into)
    tensors = load_file(copy / "model.safetensors")
    for name in [name for name in tensors if name.endswith(".scales")][:count]:
        tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return str(copy)


def test_a_sound_folder_exits_0(quantkit: Call, embedded_w4: Path) -> None:
    code, out, _ = quantkit("verify", str(embedded_w4))
    assert code == 0
    assert out.startswith(f"{embedded_w4} is sound: 42 quantized weights")


def test_problems_of_one_kind_are_one_line(
    quantkit: Call, embedded_w4: Path, tmp_path: Path
) -> None:
    folder = spoiled(embedded_w4, tmp_path / "out", 7)
    code, out, _ = quantkit("verify", folder, "--quiet")
    assert code == 6
    assert out.count("scale-not-finite: ") == 1
    assert "7 times, also" in out
    assert "is faulty: 7 problems" in out


def test_json_has_all_of_them(quantkit: Call, embedded_w4: Path, tmp_path: Path) -> None:
    folder = spoiled(embedded_w4, tmp_path / "out", 7)
    code, out, _ = quantkit("verify", folder, "--json")
    found = json.loads(out)
    assert (code, found["status"], found["counts"]) == (6, "faulty", {"scale-not-finite": 7})
    assert len(found["problems"]) == 7
    assert set(found["problems"][0]) == {"code", "path", "sentence", "remedy"}
    assert "sum-differs" not in out


def test_what_cannot_be_read_exits_4_and_is_named(
    quantkit: Call, embedded_w4: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(embedded_w4, tmp_path / "out")
    (folder / "SHA256SUMS").unlink()
    (folder / "quantkit.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "exotic"}
    (folder / "config.json").write_text(json.dumps(config))
    code, out, _ = quantkit("verify", str(folder))
    assert code == 4
    assert "not checked: `config.json`" in out
    assert "sound" not in out


def test_progress_names_the_time_left(quantkit: Call, embedded_w4: Path) -> None:
    _, _, err = quantkit("verify", str(embedded_w4))
    assert "verify 57/57" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--tp", "2"), 2, "--engine"),
        (("--engine", "none"), 2, "none"),
        (("--source", "no/such/folder"), 2, "no/such/folder"),
    ],
)
def test_wrong_usage(
    quantkit: Call, embedded_w4: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    found, _, err = quantkit("verify", str(embedded_w4), *arguments)
    assert found == code
    assert said in err


def test_a_folder_that_is_none(quantkit: Call, tmp_path: Path) -> None:
    code, _, err = quantkit("verify", str(tmp_path))
    assert code == 2
    assert "config.json" in err
