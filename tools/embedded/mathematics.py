"""Mathematics with every step shown and every step right."""

# ruff: noqa: RUF001 (the sign of multiplication is meant)
from fractions import Fraction
from math import gcd

from tools.embedded import lexicon
from tools.embedded.dice import Dice, capital


def _addition(dice: Dice) -> str:
    a, b = dice.integer(12, 9999), dice.integer(12, 9999)
    lines, carry, place, rest_a, rest_b = [f"Compute {a} + {b}."], 0, 0, a, b
    names = ("ones", "tens", "hundreds", "thousands")
    while rest_a or rest_b:
        x, y = rest_a % 10, rest_b % 10
        total = x + y + carry
        sum_text = f"{x} + {y}" + (f" + {carry}" if carry else "")
        tail = f", write {total % 10}, carry {total // 10}" if total > 9 else f", write {total}"
        lines.append(f"{capital(names[place])}: {sum_text} = {total}{tail}.")
        carry, rest_a, rest_b, place = total // 10, rest_a // 10, rest_b // 10, place + 1
    return "\n".join([*lines, f"So {a} + {b} = {a + b}."])


def _product(dice: Dice) -> str:
    a, b = dice.integer(3, 99), dice.integer(11, 99)
    tens, ones = b // 10 * 10, b % 10
    if not ones:
        return f"{a} × {b} = {a} × {tens // 10} × 10 = {a * tens // 10} × 10 = {a * b}."
    return (
        f"To find {a} × {b}, split {b} into {tens} and {ones}.\n{a} × {tens} = {a * tens}\n"
        f"{a} × {ones} = {a * ones}\n{a * tens} + {a * ones} = {a * b}\n"
        f"Therefore {a} × {b} = {a * b}."
    )


def _division(dice: Dice) -> str:
    b, q = dice.integer(2, 12), dice.integer(12, 400)
    a = b * q + (r := dice.integer(0, b - 1))
    lines, rest, shown = [f"Divide {a} by {b}."], 0, ""
    for digit in str(a):
        rest = rest * 10 + int(digit)
        step, shown = rest // b, shown + str(rest // b)
        lines.append(f"{rest} : {b} = {step}, and {rest} - {step * b} = {rest - step * b}")
        rest -= step * b
    lines.append(f"The digits are {shown}, so {a} = {b} × {q}" + (f" + {r}." if r else "."))
    return "\n".join(lines)


def _linear(dice: Dice) -> str:
    x, a, b = dice.integer(-9, 12), dice.integer(2, 9), dice.integer(1, 30)
    name = dice.pick("xyznt")
    c = a * x + b
    return (
        f"Solve {a}{name} + {b} = {c} for {name}.\n"
        f"Subtract {b} on both sides: {a}{name} = {c - b}.\n"
        f"Divide by {a}: {name} = {x}.\nCheck: {a} · {'(' + str(x) + ')' if x < 0 else x} + {b} = "
        f"{a * x} + {b} = {c}."
    )


def _signed(value: int, factor: str = "") -> str:
    return f"{'-' if value < 0 else '+'} {abs(value)}{factor}"


def _quadratic(dice: Dice) -> str:
    p, q = sorted((dice.integer(-9, 9), dice.integer(-9, 9)))
    b, c, d = -(p + q), p * q, (p + q) ** 2 - 4 * p * q
    root = q - p
    end = f"x = {p}" if p == q else f"x = {p} or x = {q}"
    return (
        f"Equation: x² {_signed(b, 'x')} {_signed(c)} = 0\nThe discriminant is {b * b} "
        f"{_signed(-4 * c)} = {d}, whose root is {root}.\n"
        f"x = ({-b} - {root}) / 2 = {-b - root} / 2 "
        f"= {p}\nx = ({-b} + {root}) / 2 = {-b + root} / 2 = {q}\nThe sum of the solutions is "
        f"{p + q}, their product {p * q}.\nAnswer: {end}"
    )


def _sequence(dice: Dice) -> str:
    start, step = dice.integer(1, 40), dice.integer(2, 12)
    kind = dice.integer(0, 3)
    if kind == 0:
        terms = [start + step * i for i in range(dice.integer(6, 12))]
        rule = f"each term is {step} more than the one before"
    elif kind == 1:
        ratio, first = dice.integer(2, 4), dice.integer(1, 6)
        terms = [first * ratio**i for i in range(dice.integer(5, 8))]
        rule = f"each term is {ratio} times the one before"
    elif kind == 2:
        terms = [dice.integer(1, 5), dice.integer(2, 9)]
        for _ in range(dice.integer(5, 9)):
            terms.append(terms[-1] + terms[-2])
        rule = "each term is the sum of the two before it"
    else:
        terms = [(start % 9 + i) ** 2 for i in range(dice.integer(6, 10))]
        rule = "the terms are the squares of consecutive numbers"
    shown, last = ", ".join(map(str, terms[:-1])), terms[-1]
    return dice.say(
        "[Sequence|Numbers|Continue]: {s}, ...\nRule: {r}.\nNext term: {n}", s=shown, r=rule, n=last
    )


def _euclid(dice: Dice) -> str:
    common = dice.integer(1, 12)
    a, b = sorted((common * dice.integer(5, 60), common * dice.integer(5, 60)), reverse=True)
    x, y, lines = a, b, [f"The greatest common divisor of {a} and {b}:"]
    while y:
        lines.append(f"{x} = {x // y} × {y} + {x % y}")
        x, y = y, x % y
    lines.append(f"The last remainder that is not zero gives gcd({a}, {b}) = {x}.")
    if x > 1:
        lines.append(f"Hence {a}/{b} = {a // x}/{b // x}.")
    return "\n".join(lines)


def _fractions(dice: Dice) -> str:
    b, d = dice.integer(2, 12), dice.integer(2, 12)
    a, c = dice.integer(1, b - 1), dice.integer(1, d - 1)
    common = b * d // gcd(b, d)
    total = Fraction(a, b) + Fraction(c, d)
    left, right = a * common // b, c * common // d
    text = (
        f"{a}/{b} + {c}/{d}: the common denominator is {common}.\n{a}/{b} = {left}/{common} and "
        f"{c}/{d} = {right}/{common}.\nThe sum is {left + right}/{common}"
    )
    return text + ("." if total.denominator == common else f" = {total}.")


def _factors(dice: Dice) -> str:
    number = dice.integer(12, 2000)
    rest, found, lines, divisor = number, [], [f"Prime factors of {number}:"], 2
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            lines.append(f"{rest} / {divisor} = {rest // divisor}")
            found.append(divisor)
            rest //= divisor
        divisor += 1
    found += [rest] if rest > 1 else []
    if len(found) == 1:
        return f"{lines[0]} no prime up to its root divides {number}, so {number} is prime."
    return "\n".join([*lines, f"{number} = {' × '.join(map(str, found))}"])


def _mean(dice: Dice) -> str:
    values = [dice.integer(1, 60) for _ in range(dice.integer(3, 7))]
    ordered, total = sorted(values), sum(values)
    middle = len(ordered) // 2
    median = (ordered[middle] + ordered[-middle - 1]) / 2
    return (
        f"Values: {', '.join(map(str, values))}\nSorted: {', '.join(map(str, ordered))}\n"
        f"Count: {len(values)}\nSum: {' + '.join(map(str, values))} = {total}\nMean: {total}/"
        f"{len(values)} ≈ {total / len(values):.2f}\nMedian: {median:g}\nRange: {ordered[-1]} - "
        f"{ordered[0]} = {ordered[-1] - ordered[0]}"
    )


def word_problem(dice: Dice) -> tuple[str, str]:
    """A problem in words and its worked answer."""
    name = dice.pick(lexicon.WOMEN + lexicon.MEN)
    goods, other = dice.sample(lexicon.GOODS, 2)
    k, m, n = dice.integer(3, 12), dice.integer(2, 15), dice.integer(2, 5)
    if dice.chance(0.5):
        question = dice.say(
            "{p} [buys|orders] {k} [boxes|crates] of {g} with {m} {g} in each, and gives "
            "{n} {g} away. How many {g} [are left|does {p} keep]?",
            p=name,
            k=k,
            m=m,
            n=n,
            g=goods,
        )
        answer = (
            f"There are {k} × {m} = {k * m} {goods}. After giving {n} away, {k * m} - {n} = "
            f"{k * m - n} are left.\nAnswer: {k * m - n} {goods}"
        )
    else:
        question = dice.say(
            "[At the market|In the shop] {p} pays {a} euros for each of {k} {g} and {b} "
            "euros for each of {n} {o}. [How much is that|What does {p} pay] in all?",
            p=name,
            a=m,
            k=k,
            g=goods,
            b=k + n,
            n=n,
            o=other,
        )
        first, second = m * k, (k + n) * n
        answer = (
            f"The {goods} cost {k} × {m} = {first} euros. "
            f"The {other} cost {n} × {k + n} = {second} "
            f"euros. Together that is {first} + {second} = {first + second} euros.\n"
            f"Answer: {first + second} euros"
        )
    return question, answer


def _worded(dice: Dice) -> str:
    return "\n".join(word_problem(dice))


def problem(dice: Dice) -> str:
    """One exercise with its worked solution."""
    makers = (
        _addition,
        _product,
        _division,
        _linear,
        _quadratic,
        _sequence,
        _euclid,
        _fractions,
        _factors,
        _mean,
        _worded,
    )
    return dice.pick(makers)(dice)


def worksheet(dice: Dice) -> str:
    """Two to six exercises, numbered or set apart."""
    exercises = [problem(dice) for _ in range(dice.integer(2, 6))]
    if dice.chance(0.5):
        return "\n\n".join(f"{i}. {text}" for i, text in enumerate(exercises, 1))
    return "\n\n".join(exercises)
