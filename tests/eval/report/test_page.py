import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.errors import InputError
from quantkit.core.units import UNIT_NOTE
from quantkit.eval.report.load import load_study
from quantkit.eval.report.page import render
from quantkit.eval.report.recommendation import choose, level_line, level_of, one_line
from quantkit.eval.report.targets import default_target
from quantkit.eval.report.write import write_report

MEBIBYTE = 1024**2
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    "a\u202egpj.exe\u0007\x1b[31m",
    "' onmouseover='alert(1)",
)
NEEDS_CLOSING_NONE = {"meta", "link", "input", "path", "use", "img", "br"}


class Tree(HTMLParser):
    """Tags with attributes, and the text of each script."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        if tag not in NEEDS_CLOSING_NONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in NEEDS_CLOSING_NONE:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            kind, text = self.scripts.pop()
            self.scripts.append((kind, text + data))
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def parsed(page: str) -> Tree:
    tree = Tree()
    tree.feed(page)
    tree.close()
    assert tree.open == []
    return tree


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, generated: Any) -> Path:
    return generated.write_sweep(tmp_path_factory.mktemp("sweep"), count=9)  # type: ignore[no-any-return]


def test_verdict_and_tables_are_there_without_script(full: Path) -> None:
    study = load_study([full])
    tree = parsed(render(study))
    verdict = choose(study, default_target(study)).verdict
    assert re.sub(r"\s+", " ", f"{verdict.name} {verdict.text}") in tree.words
    for build in study.builds:
        assert re.sub(r"\s+", " ", one_line(build, study)) in tree.words
        assert build.command in tree.words
    assert generated_rows(tree) == len(study.everything)
    assert study.protocol is not None
    assert study.protocol.tokens_sha256 in tree.words


def generated_rows(tree: Tree) -> int:
    start = next(i for i, (_, attrs) in enumerate(tree.tags) if attrs.get("id") == "t-builds")
    count = 0
    for tag, attrs in tree.tags[start + 1 :]:
        if tag == "table":
            break
        count += tag == "tr" and "data-b" in attrs
    return count


def test_nothing_runs_but_the_scripts_that_the_policy_names(full: Path) -> None:
    tree = parsed(render(load_study([full])))
    policy = next(
        attrs["content"] or ""
        for tag, attrs in tree.tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    scripts = [text for kind, text in tree.scripts if kind is None]
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert len(scripts) == 3
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert "unsafe-eval" not in policy


def test_nothing_points_out_of_the_page(full: Path) -> None:
    tree = parsed(render(load_study([full])))
    for _, attrs in tree.tags:
        assert not {"src", "action", "srcset", "data", "poster"} & set(attrs)
        assert (attrs.get("href") or "#").startswith(("#", "data:,"))
        assert not [name for name in attrs if name.startswith("on")]
        assert "style" not in attrs


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_from_a_recipe_is_text_and_nothing_else(
    tmp_path: Path, generated: Any, name: str
) -> None:
    clean, hostile = tmp_path / "clean", tmp_path / "hostile"
    for folder, label in ((clean, "plain"), (hostile, name)):
        folder.mkdir()
        generated.write_sweep(folder, count=3, rename={0: label})
        sweep = json.loads((folder / "sweep.json").read_text())
        sweep["model"]["name"] = label
        sweep["runs"][1] |= {"family": label, "command": f"quantkit quantize {label}"}
        sweep["runs"][-1]["why"] = label
        (folder / "sweep.json").write_text(json.dumps(sweep))
    one, other = (parsed(render(load_study([folder]))) for folder in (clean, hostile))
    assert [tag for tag, _ in one.tags] == [tag for tag, _ in other.tags]
    assert [set(attrs) for _, attrs in one.tags] == [set(attrs) for _, attrs in other.tags]
    data = next(text for kind, text in other.scripts if kind == "application/json")
    assert not set("<>&") & set(data)
    shown = json.loads(data)["builds"][1]["label"]
    assert shown == name or not name.isprintable()
    assert "\u202e" not in shown
    assert "\x1b" not in shown


def test_sections_without_figures_are_left_out(tmp_path: Path, generated: Any) -> None:
    whole = {"memory", "tasks", "speed", "modules", "quality", "frontier"}
    for parts, missing in ((generated.PARTS, set()), ((), whole - {"quality", "frontier"})):
        folder = tmp_path / str(len(parts))
        folder.mkdir()
        page = render(load_study([generated.write_sweep(folder, count=4, parts=parts)]))
        ids = {attrs.get("id") for _, attrs in parsed(page).tags}
        links = {(attrs.get("href") or "")[1:] for tag, attrs in parsed(page).tags if tag == "a"}
        assert whole & ids == whole - missing
        assert whole & links == whole - missing


def test_every_link_and_label_has_its_target(full: Path) -> None:
    tags = parsed(render(load_study([full]))).tags
    ids = [attrs["id"] for _, attrs in tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    for _, attrs in tags:
        for name in ("aria-labelledby", "for"):
            assert (attrs.get(name) or ids[0]) in ids
        href = attrs.get("href") or ""
        if href.startswith("#"):
            assert href[1:] in ids


def test_units_are_named_once_and_levels_once_a_build(full: Path) -> None:
    study = load_study([full])
    words = parsed(render(study)).words
    assert words.count(UNIT_NOTE) == 1
    assert not re.search(r"\d [KMGT]iB", words)
    large = [b for b in study.builds if (level := level_of(b)) and level.level == "large"]
    assert large
    for build in large:
        assert build.measured is not None
        assert build.measured.kl_level is not None
        meaning, steps = build.measured.kl_level.meaning, build.measured.kl_level.next
        assert words.count(f"{meaning}. To try: {steps[0]}") == 1
        assert all(step in words for step in steps)


def test_results_from_before_levels_and_own_bits_make_a_page(
    tmp_path: Path, generated: Any
) -> None:
    data = json.loads(generated.eval_result(1).model_dump_json(by_alias=True))
    del data["kl_level"], data["artifact"]["quantized_bits_per_weight"]
    (tmp_path / "eval.json").write_text(json.dumps(data))
    study = load_study([tmp_path])
    words = parsed(render(study)).words
    assert "whole model" in words
    assert "quantized linears" not in words
    assert level_line(study.builds[0]) == ""


def test_a_result_without_an_original_makes_a_page_too(tmp_path: Path, generated: Any) -> None:
    result = generated.eval_result(1, parts=())
    bare = result.model_copy(update={"kl": None, "reference": None, "reference_perplexity": None})
    study = load_study([generated.write_eval(tmp_path, bare)])
    assert study.reference is None
    words = parsed(render(study)).words
    assert "Nothing to compare." in words
    assert "Perplexity" in words


def test_equal_results_make_equal_pages(full: Path) -> None:
    assert render(load_study([full])) == render(load_study([full]))


def test_forty_recipes_stay_under_two_megabytes(tmp_path: Path, generated: Any) -> None:
    generated.write_sweep(tmp_path, count=40, documents=512)
    written = write_report([tmp_path], tmp_path / "report.html")
    assert written.bytes == (tmp_path / "report.html").stat().st_size
    assert written.bytes < 2 * MEBIBYTE


def test_the_name_of_the_output_says_what_is_written(full: Path, tmp_path: Path) -> None:
    for ending, start in (
        (".html", "<!doctype"),
        (".md", "# Gen"),
        (".csv", "build,"),
        (".JSON", "{"),
    ):
        output = tmp_path / f"report{ending}"
        for _ in range(2):  # an older one is replaced
            write_report([full], output)
        assert output.read_text(encoding="utf-8").startswith(start)
    with pytest.raises(InputError, match="does not say what to write"):
        write_report([full], tmp_path / "report.pdf")
