"""Conversations between a user and an assistant that has to remember, count, sort and explain."""

from collections.abc import Callable

from tools.embedded import exposition, instructions, lexicon, mathematics, records, source_code
from tools.embedded.dice import Dice, article, capital, listing
from tools.embedded.lexicon import words

Turn = tuple[str, str]
_PETS = words("dog,cat,parrot,rabbit,horse,goat,hamster,tortoise,goose,donkey")
_THANKS = ("Thank you!", "Thanks.", "Great, thanks.", "That helps.", "Perfect.", "Good to know.")
_WELCOME = (
    "You are welcome.",
    "Glad to help.",
    "Any time.",
    "My pleasure.",
    "You are welcome. Is there anything else?",
)


def _memory(dice: Dice) -> list[Turn]:
    name, pet, called = (
        dice.pick(lexicon.WOMEN + lexicon.MEN),
        dice.pick(_PETS),
        capital(lexicon.coined(dice)),
    )
    home, trade, age = lexicon.town(dice), dice.pick(lexicon.TRADES), dice.integer(18, 80)
    first = (
        dice.say(
            "[Hello|Hi|Good morning], [I am|my name is] {n}. I am {a} years old, I live in {h} "
            "and I work as {t}. My {p} is called {c}.",
            n=name,
            a=age,
            h=home,
            t=article(trade),
            p=pet,
            c=called,
        ),
        dice.say(
            "[Hello|Nice to meet you], {n}! [How is life|What is it like to be {t}] in {h}? "
            "[And greetings to {c}|{c} is a fine name for a {p}].",
            n=name,
            t=article(trade),
            h=home,
            c=called,
            p=pet,
        ),
    )
    questions: list[Turn] = [
        (
            dice.say("[What is my {p} called|Do you remember the name of my {p}]?", p=pet),
            dice.say("[Your {p} is called {c}|It is {c}].", p=pet, c=called),
        ),
        ("Where do I live?", dice.say("You [told me that you ]live in {h}.", h=home)),
        (
            "How old will I be in ten years?",
            f"You are {age} now, so in ten years you will be {age + 10}.",
        ),
        ("What do I do for a living?", f"You work as {article(trade)}."),
        ("What is my name?", f"Your name is {name}."),
        (
            dice.say(
                "[Sum up|Repeat] what you know about me.",
            ),
            f"Your name is {name}, you are {age} years old, "
            f"you work as {article(trade)} in {home}, and you have a {pet} called {called}.",
        ),
    ]
    return [first, *dice.sample(questions, dice.integer(2, 5))]


def _lists(dice: Dice) -> list[Turn]:
    pool = dice.pick(
        (lexicon.GOODS, lexicon.OBJECTS, lexicon.PLACES, lexicon.WOMEN, lexicon.TRADES)
    )
    words = dice.sample(pool, dice.integer(3, 7))
    by_length = sorted(words, key=lambda word: (len(word), word))
    tasks: list[Turn] = [
        ("Put them in alphabetical order.", ", ".join(sorted(words, key=str.lower))),
        ("Now in reverse order of my list.", ", ".join(reversed(words))),
        ("How many are there?", f"There are {lexicon.number(len(words))}."),
        ("Write them in capital letters.", ", ".join(words).upper()),
        (
            "Which is the first and which is the last?",
            f"The first is {words[0]}, the last is {words[-1]}.",
        ),
        ("As a bulleted list, please.", "\n".join(f"- {word}" for word in words)),
        ("Number them.", "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1))),
        ("Sort them by length.", ", ".join(by_length)),
        (f"Leave out {words[1]}.", ", ".join(w for w in words if w != words[1])),
    ]
    opening = dice.say(
        "[Here is a list|I have these words|Take this list]: {w}.", w=", ".join(words)
    )
    chosen = dice.sample(tasks, dice.integer(2, 4))
    head, tail = chosen[0], chosen[1:]
    return [(f"{opening} {head[0]}", head[1]), *tail]


def _arithmetic(dice: Dice) -> list[Turn]:
    if dice.chance(0.5):
        return [mathematics.word_problem(dice) for _ in range(dice.integer(1, 3))]
    turns, value = [], dice.integer(2, 60)
    for i in range(dice.integer(2, 5)):
        change = dice.integer(2, 30)
        add = value < change or dice.chance(0.5)
        result = value + change if add else value - change
        verb = f"add {change}" if add else f"subtract {change}"
        asked = (
            f"Start with {value} and {verb}."
            if i == 0
            else dice.say("[Now|Then|And now] {v}.", v=verb)
        )
        turns.append((asked, f"{value} {'+' if add else '-'} {change} = {result}"))
        value = result
    return turns


def _explain(dice: Dice) -> list[Turn]:
    text = exposition.essay(dice).split("\n\n")[-1]
    return [
        (
            dice.say(
                "[Tell me something interesting|Write a short encyclopaedia entry|"
                "Explain something to me], "
                "[please|in one paragraph|for a school book]."
            ),
            text,
        )
    ]


def _code(dice: Dice) -> list[Turn]:
    language, code = source_code.snippet(dice)
    functions = code.count("def ")
    ask = dice.say("[Show me|Write|I need] [an example|a short piece of code] in {l}.", l=language)
    turns = [(ask, f"```{language}\n{code.rstrip()}\n```")]
    if language == "python" and functions:
        turns.append(
            (
                "How many functions or methods does it define?",
                f"It defines {lexicon.number(functions)}.",
            )
        )
    return turns


def _how_to(dice: Dice) -> list[Turn]:
    text = instructions.guide(dice)
    title = text.split("\n", 1)[0].lstrip("# ")
    return [
        (dice.say('[Please write instructions|Write a guide] with the title "{t}".', t=title), text)
    ]


def _table(dice: Dice) -> list[Turn]:
    text = records.table(dice)
    lines = [line for line in text.split("\n") if line]
    return [
        (
            dice.say(
                "[How many lines has this text?|Count the lines that are not empty.]\n\n{t}", t=text
            ),
            f'{len(lines)} lines. The first is "{lines[0]}".',
        )
    ]


def _choice(dice: Dice) -> list[Turn]:
    a, b, c = dice.sample(lexicon.PLACES, 3)
    where, day = lexicon.town(dice), dice.integer(0, 6)
    names = dice.sample(lexicon.WOMEN + lexicon.MEN, 2)
    tomorrow = lexicon.DAYS[(day + 1) % 7]
    return [
        (
            dice.say(
                "{x} and {y} [are|will be] in {w} [for two days|over {d} and {e}]. "
                "What should they see?",
                x=names[0],
                y=names[1],
                w=where,
                d=lexicon.DAYS[day],
                e=tomorrow,
            ),
            dice.say(
                "On {d} [they could visit|I would begin with] the {a} and the {b}; "
                "on {e} there is [time|room] for the {c}.",
                d=lexicon.DAYS[day],
                e=tomorrow,
                a=a,
                b=b,
                c=c,
            ),
        ),
        (
            dice.say("{x} [does not like|has seen] the {b}.", x=names[0], b=b),
            dice.say(
                "Then {x} can go to the {c} on {d} while {y} sees the {b}"
                "[|; on {e} both go to the {a}].",
                x=names[0],
                y=names[1],
                c=c,
                b=b,
                d=lexicon.DAYS[day],
                e=tomorrow,
                a=a,
            ),
        ),
        (
            dice.say("[So what is the plan|And the whole plan]?"),
            f"{lexicon.DAYS[day]}: {a} together, then {names[0]} to the {c} and {names[1]} to "
            f"the {b}. {tomorrow}: {listing([a, c])}.",
        ),
    ]


def conversation(dice: Dice) -> list[dict[str, str]]:
    """The messages of one conversation, user first."""
    topics: tuple[Callable[[Dice], list[Turn]], ...] = (
        _memory,
        _lists,
        _arithmetic,
        _explain,
        _code,
        _how_to,
        _table,
        _choice,
        _memory,
        _lists,
    )
    turns = dice.pick(topics)(dice)
    if dice.chance(0.25):
        turns += dice.pick((_lists, _arithmetic))(dice)
    if dice.chance(0.3):
        turns.append((dice.pick(_THANKS), dice.pick(_WELCOME)))
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
