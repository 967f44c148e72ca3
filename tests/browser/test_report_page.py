import json
import random
from collections.abc import Callable
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from quantkit.eval.report.load import load_study
from quantkit.eval.report.recommendation import choose
from quantkit.eval.report.study import Target
from quantkit.eval.report.targets import default_target
from quantkit.eval.report.write import write_report

Open = Callable[..., Any]
POINTS = "#c-frontier [role=img]"
COLUMN = """at => [...document.querySelectorAll("#t-builds tbody tr")].map(
    row => row.cells[at].dataset.v
)"""
ASK = """chosen => {
    for (const [name, value] of Object.entries(chosen)) {
        document.querySelector(`#ask-${name}`).value = value;
    }
    document.querySelector("#ask-limit").dispatchEvent(new Event("change"));
}"""


def names(page: Page) -> list[str]:
    """Builds in the order of the visible rows."""
    return [
        cell.inner_text().splitlines()[0].strip()
        for cell in page.locator("#t-builds tbody tr:visible th .name").all()
    ]


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("width", "theme"), list(product((1280, 390), ("light", "dark"))))
def test_a_page_asks_for_nothing_says_nothing_and_fits(
    show: Open, large: Path, width: int, theme: str
) -> None:
    opened = show(large, width, theme)
    page = opened.page
    page.mouse.move(200, 400)
    page.keyboard.press("Tab")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(200)
    assert [url for url in opened.requests if not url.startswith("data:")] == [large.as_uri()]
    assert opened.messages == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    drawn = page.locator(".chart:visible").all()
    assert len(drawn) == 8
    assert all(chart.locator("[role=img]").count() > 0 for chart in drawn)


@pytest.mark.parametrize(("width", "theme"), list(product((1280, 390), ("light", "dark"))))
def test_axe_finds_no_violation(show: Open, small: Path, width: int, theme: str) -> None:
    page = show(small, width, theme).page
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    options = json.dumps({"runOnly": {"type": "tag", "values": tags}})
    found = page.evaluate(f"axe.run(document, {options})")
    assert len(found["passes"]) > 20  # it did look
    told = [
        (fault["id"], [node["target"] for node in fault["nodes"]][:3])
        for fault in found["violations"]
    ]
    assert told == []


def test_forty_recipes_open_in_under_a_second(browser: Browser, large: Path) -> None:
    """Seconds of the page's own thread until it can be used: other work on the machine aside."""
    seconds = []
    for _ in range(2):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(large.as_uri(), wait_until="commit")
        page.wait_for_selector("html[data-ready]", state="attached")
        metrics = session.send("Performance.getMetrics")["metrics"]
        seconds.append({each["name"]: each["value"] for each in metrics}["TaskDuration"])
        page.close()
    assert 0.01 < min(seconds) < 1


def test_hover_and_focus_tell_the_same_of_a_point(show: Open, report: Path) -> None:
    page = show(report).page
    tip = page.locator("#tip")
    points = page.locator(POINTS)
    assert points.count() == 8
    points.nth(0).hover()
    hovered = tip.inner_text()
    assert "quantkit quantize org/Generated-8B" in hovered
    assert "nats" in hovered
    page.mouse.move(5, 5)
    assert "on" not in (tip.get_attribute("class") or "")
    points.nth(0).focus()
    assert tip.inner_text() == hovered
    label = points.nth(0).get_attribute("aria-label") or ""
    assert label.startswith(hovered.splitlines()[0])
    page.keyboard.press("Escape")
    assert "on" not in (tip.get_attribute("class") or "")


def test_arrows_walk_the_points_and_enter_selects_everywhere(show: Open, report: Path) -> None:
    page = show(report).page
    assert page.locator(f"{POINTS}[tabindex='0']").count() == 1
    page.locator(POINTS).nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')").split(",")[0]
    page.keyboard.press("Enter")
    assert squeezed(page.locator("#verdict-text b").inner_text()) == focused
    assert page.locator("#eyebrow").inner_text() == "Selected build"
    assert focused in page.locator("#t-builds tr[aria-current]").inner_text()
    assert focused in page.locator("[data-pick=modules] option:checked").inner_text()
    still = page.evaluate("document.activeElement.getAttribute('aria-label')").split(",")[0]
    assert still == focused  # although the chart was drawn again
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    first = page.locator(POINTS).nth(0).get_attribute("aria-label")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == first


def test_every_column_sorts_both_ways_with_the_unmeasured_last(show: Open, report: Path) -> None:
    page = show(report).page
    count = page.locator("#t-builds thead button").count()
    assert count > 10
    for at in range(count):
        orders = []
        for _ in range(2):
            page.locator("#t-builds thead button").nth(at).click()
            values = page.evaluate(COLUMN, at)
            known = [value for value in values if value]
            assert values == known + [""] * (len(values) - len(known))
            orders.append(known)
        if at:
            up, down = sorted(orders, key=lambda order: float(order[0]))
            assert [float(v) for v in up] == sorted(float(v) for v in up)
            assert [float(v) for v in down] == sorted((float(v) for v in down), reverse=True)
    sort = page.locator("#t-builds thead th").nth(count - 1).get_attribute("aria-sort")
    assert sort in {"ascending", "descending"}
    assert page.locator("#t-builds thead th[aria-sort]").count() == 1


def test_the_filter_looks_at_names_families_and_verdicts(show: Open, report: Path) -> None:
    page = show(report).page
    everything = names(page)
    page.fill("#filter", "gptq w4")
    assert names(page) == ["GPTQ W4 g128"]
    assert page.locator("#shown").inner_text() == f"1 of {len(everything)}"
    page.fill("#filter", "round to")
    assert names(page) == ["RTN W4 g128", "RTN W3 g128"]
    page.fill("#filter", "misses")
    assert names(page) == ["GPTQ W3 g128", "RTN W3 g128"]
    page.fill("#filter", "")
    assert names(page) == everything


def test_the_theme_follows_the_system_until_it_is_set(show: Open, report: Path) -> None:
    page = show(report, theme="dark").page
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(colour)
    assert (dark, light) == ("rgb(15, 18, 20)", "rgb(247, 247, 245)")
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    assert page.evaluate(colour) == light
    assert page.get_by_role("button", name="Light").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Auto").click()
    assert page.evaluate(colour) == dark


def test_the_page_judges_as_the_program_does_under_every_load(show: Open, report: Path) -> None:
    study = load_study([report.parent])
    page = show(report).page
    opened = choose(study, default_target(study)).verdict
    shown = page.locator("#verdict-text")
    assert squeezed(shown.inner_text()) == squeezed(f"{opened.name} {opened.text}")
    draw = random.Random(3)
    values = {
        name: [o.get_attribute("value") or "" for o in page.locator(f"#ask-{name} option").all()]
        for name in ("limit", "context", "sequences", "floor")
    }
    seen = set()
    for _ in range(30):
        chosen = {name: draw.choice(options) for name, options in values.items()}
        page.evaluate(ASK, chosen)
        target = Target(
            "memory",
            int(chosen["limit"]) if chosen["limit"] else None,
            int(chosen["context"]),
            int(chosen["sequences"]),
            float(chosen["floor"]) if chosen["floor"] else None,
        )
        choice = choose(study, target)
        told = squeezed(f"{choice.verdict.name} {choice.verdict.text}")
        assert squeezed(shown.inner_text()) == told
        others = [squeezed(item.inner_text()) for item in page.locator("#others li").all()]
        assert others == [squeezed(f"{other.name} {other.text}") for other in choice.others]
        seen.add(choice.verdict.name)
    assert len(seen) > 3


def test_memory_follows_the_load_and_size_on_disk_does_not(show: Open, report: Path) -> None:
    page = show(report).page
    field = "#t-builds tbody tr:nth-child(2) td:nth-child({})"
    heads = [h.get_attribute("data-field") for h in page.locator("#t-builds thead th").all()]
    memory, disk = (
        page.locator(field.format(1 + heads.index(name))) for name in ("memory_bytes", "bytes")
    )
    before = float(memory.get_attribute("data-v") or 0), disk.inner_text()
    page.select_option("#ask-context", "32768")
    after = float(memory.get_attribute("data-v") or 0), disk.inner_text()
    assert after[0] - before[0] == 147_456 * (32768 - 2048)
    assert after[1] == before[1]
    at_load = page.locator(POINTS).nth(0).get_attribute("aria-label") or ""
    page.get_by_role("button", name="Size on disk").click()
    on_disk = page.locator(POINTS).nth(0).get_attribute("aria-label") or ""
    assert "Memory" in at_load
    assert "On disk" in on_disk


def test_without_script_verdict_tables_and_commands_are_readable(show: Open, report: Path) -> None:
    opened = show(report, script=False)
    page = opened.page
    study = load_study([report.parent])
    verdict = choose(study, default_target(study)).verdict
    assert squeezed(f"{verdict.name} {verdict.text}") in squeezed(page.inner_text("#verdict"))
    for table, rows in (("#t-builds", 10), ("#t-recipes", 9), ("#t-tasks", 24), ("#t-worst", 8)):
        assert page.locator(f"{table} tbody tr:visible").count() == rows
    assert page.locator("pre:visible").count() == 10
    assert page.locator("select:visible, button:visible, .chart:visible").count() == 0
    assert opened.messages == []


def test_names_from_recipes_draw_nothing_and_run_nothing(
    show: Open, tmp_path: Path, generated: Any
) -> None:
    hostile = {
        0: "<img src=x onerror=alert(1)>",
        1: "</script><script>alert(1)</script>",
        2: "<svg onload=alert(1)>",
        3: "'\"><b id=planted>",
    }
    generated.write_sweep(tmp_path, count=6, rename=hostile)
    opened = show(write_report([tmp_path], tmp_path / "report.html").output)
    page = opened.page
    for i in range(page.locator(POINTS).count()):
        page.locator(POINTS).nth(i).focus()
    page.locator("#t-builds tbody tr").nth(1).click()
    page.wait_for_timeout(100)
    assert page.locator("#planted, img").count() == 0
    assert page.evaluate("document.scripts.length") == 4
    assert hostile[0] in page.inner_text("#t-builds")
    assert opened.messages == []


def test_it_prints_on_paper_in_light_colours(show: Open, report: Path) -> None:
    page = show(report, theme="dark").page
    assert page.pdf(format="A4", print_background=True).startswith(b"%PDF")
    page.emulate_media(media="print")
    colour = "getComputedStyle(document.body).color"
    assert page.evaluate(colour) == "rgb(26, 29, 31)"
    assert not page.locator("nav").is_visible()
    assert page.locator("#verdict-text").is_visible()


def test_targets_on_a_phone_are_large_enough_for_a_thumb(show: Open, report: Path) -> None:
    page = show(report, width=390).page
    for control in page.locator("select:visible, input:visible, .themes button:visible").all():
        box = control.bounding_box()
        assert box is not None
        assert box["height"] >= 40
