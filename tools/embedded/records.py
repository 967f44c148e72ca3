"""Tables in Markdown and CSV, JSON records and log lines, each consistent in itself."""

import json
from collections.abc import Callable

from tools.embedded import lexicon
from tools.embedded.dice import Dice

Column = tuple[str, Callable[[Dice], str]]


def _person(dice: Dice) -> str:
    return f"{dice.pick(lexicon.WOMEN + lexicon.MEN)} {lexicon.surname(dice)}"


def _clock(minutes: int) -> str:
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def _inventory(dice: Dice) -> tuple[list[str], list[list[str]], str]:
    rows, total = [], 0
    for goods in dice.sample(lexicon.GOODS, dice.integer(3, 8)):
        count, price = dice.integer(1, 40), dice.integer(1, 30)
        total += count * price
        rows.append([goods, str(count), str(price), str(count * price)])
    return ["Item", "Quantity", "Price", "Amount"], rows, f"The amounts add up to {total}."


def _timetable(dice: Dice) -> tuple[list[str], list[list[str]], str]:
    now, rows = dice.integer(5, 20) * 60 + dice.integer(0, 59), []
    start = now
    for i in range(dice.integer(4, 8)):
        stay = dice.integer(1, 5)
        rows.append([lexicon.town(dice), _clock(now), _clock(now + stay), str(i + 1)])
        now += stay + dice.integer(4, 55)
    end = int(rows[-1][1][:2]) * 60 + int(rows[-1][1][3:])
    return (
        ["Stop", "Arrives", "Departs", "Platform"],
        rows,
        (f"The journey from {rows[0][0]} to {rows[-1][0]} takes {(end - start) % 1440} minutes."),
    )


def _results(dice: Dice) -> tuple[list[str], list[list[str]], str]:
    scores = sorted(dice.sample(range(3, 100), dice.integer(4, 9)), reverse=True)
    rows = [[str(i), _person(dice), lexicon.town(dice), str(s)] for i, s in enumerate(scores, 1)]
    winner = rows[0]
    return (
        ["Rank", "Name", "Town", "Points"],
        rows,
        (
            f"{winner[1]} of {winner[2]} won with {winner[3]} points, "
            f"{scores[0] - scores[1]} ahead of "
            f"{rows[1][1]}."
        ),
    )


def _weather(dice: Dice) -> tuple[list[str], list[list[str]], str]:
    first, place = dice.integer(0, 6), lexicon.town(dice)
    rows, lows, highs = [], [], []
    for i in range(dice.integer(4, 7)):
        low = dice.integer(-8, 18)
        high = low + dice.integer(2, 12)
        lows.append(low)
        highs.append(high)
        rows.append([lexicon.DAYS[(first + i) % 7], str(low), str(high), str(dice.integer(0, 30))])
    best = rows[highs.index(max(highs))][0]
    return (
        ["Day", "Low", "High", "Rain (mm)"],
        rows,
        (
            f"In {place} the warmest day was {best} with {max(highs)} degrees; "
            f"the lowest reading was {min(lows)}."
        ),
    )


def _markdown(dice: Dice, header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    if dice.chance(0.4):
        widths = [3 for _ in header]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in [header, *rows]
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def table(dice: Dice) -> str:
    """A Markdown table or CSV text, often with a sentence that follows from its figures."""
    header, rows, conclusion = dice.pick((_inventory, _timetable, _results, _weather))(dice)
    if dice.chance(0.5):
        text = _markdown(dice, header, rows)
    else:
        mark = dice.pick(",,;\t")
        head = [name.lower().replace(" ", "_") for name in header]
        text = "\n".join(mark.join(row) for row in [head, *rows])
    title = (
        f"{dice.pick(('Table', 'List', 'Sheet'))} {dice.integer(1, 99)}, {lexicon.date(dice)}\n\n"
    )
    text = (title if dice.chance(0.4) else "") + text
    return f"{text}\n\n{conclusion}" if dice.chance(0.7) else text


def _profile(dice: Dice) -> dict[str, object]:
    first, last, home = (
        dice.pick(lexicon.WOMEN + lexicon.MEN),
        lexicon.surname(dice),
        lexicon.town(dice),
    )
    return {
        "id": dice.integer(1000, 99999),
        "name": f"{first} {last}",
        "email": f"{first}.{last}@{home}.example".lower(),
        "trade": dice.pick(lexicon.TRADES),
        "address": {
            "street": f"{lexicon.surname(dice)} Street {dice.integer(1, 99)}",
            "town": home,
        },
        "active": dice.chance(0.6),
        "tags": dice.sample(lexicon.FEELINGS, dice.integer(0, 3)),
    }


def _order(dice: Dice) -> dict[str, object]:
    lines = [
        {
            "item": goods,
            "quantity": (n := dice.integer(1, 20)),
            "price": (p := dice.integer(1, 50)),
            "amount": n * p,
        }
        for goods in dice.sample(lexicon.GOODS, dice.integer(1, 4))
    ]
    return {
        "order": f"{dice.pick('ABCDEFGH')}-{dice.integer(100, 9999)}",
        "customer": _person(dice),
        "date": f"{dice.integer(1990, 2025)}-{dice.integer(1, 12):02d}-{dice.integer(1, 28):02d}",
        "lines": lines,
        "total": sum(int(str(line["amount"])) for line in lines),
        "paid": dice.chance(0.5),
    }


def _settings(dice: Dice) -> dict[str, object]:
    name = lexicon.coined(dice)
    return {
        "service": name,
        "version": f"{dice.integer(0, 9)}.{dice.integer(0, 20)}.{dice.integer(0, 20)}",
        "listen": {"host": f"{name}.example", "port": dice.integer(1024, 9999)},
        "limits": {
            "connections": 2 ** dice.integer(3, 12),
            "timeout_seconds": dice.integer(1, 120),
        },
        "paths": [f"/srv/{name}/{dice.pick(lexicon.GOODS)}" for _ in range(dice.integer(1, 3))],
        "debug": dice.chance(0.3),
        "parent": None,
    }


def _log(dice: Dice) -> str:
    service, second = lexicon.coined(dice), dice.integer(0, 80000)
    day = f"{dice.integer(2015, 2025)}-{dice.integer(1, 12):02d}-{dice.integer(1, 28):02d}"
    job, lines = dice.integer(100, 999), []
    total = dice.integer(4, 12)
    for done in range(1, total + 1):
        second += dice.integer(1, 40)
        level, text = "INFO", f"job {job}: {done} of {total} parts done"
        if dice.chance(0.15):
            level, text = "WARN", f"job {job}: part {done} was slow ({dice.integer(200, 4000)} ms)"
        stamp = f"{day}T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        lines.append(f"{stamp} {level} {service}[{job}] {text}")
    return "\n".join(lines)


def record(dice: Dice) -> str:
    """JSON (indented, compact or one record per line) or a log of one job."""
    if dice.chance(0.15):
        return _log(dice)
    maker = dice.pick((_profile, _order, _settings))
    if dice.chance(0.25):
        return "\n".join(
            json.dumps(maker(dice), ensure_ascii=False) for _ in range(dice.integer(2, 5))
        )
    value: object = maker(dice)
    if dice.chance(0.3):
        value = [value, *(maker(dice) for _ in range(dice.integer(1, 2)))]
    return json.dumps(value, indent=2 if dice.chance(0.8) else None, ensure_ascii=False)
