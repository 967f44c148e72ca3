import pytest

from quantkit.checkpoint.sizes import parse_size
from quantkit.core.errors import InputError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("500MiB", 500 * 2**20),
        ("500 mib", 500 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("2k", 2000),
        ("7B", 7),
        (" 12345678 ", 12345678),
        ("24B", 24),
        (4096, 4096),
        ("1T", 10**12),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "5XB",
        "-5GB",
        "0",
        "5 G B",
        "1e9",
        "\N{ARABIC-INDIC DIGIT FIVE}GB",
        "9" * 30,
        "nan",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a valid size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["24", " 5 ", "999999", "1.5"])
def test_a_forgotten_unit_is_told(text: str) -> None:
    with pytest.raises(InputError, match="without a unit") as caught:
        parse_size(text, "--size ")
    assert caught.value.hint == f"--size {text.strip()}GB"
