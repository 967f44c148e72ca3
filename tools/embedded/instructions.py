"""Step-by-step instructions: cooking, repairs, and work at the command line."""

from tools.embedded import lexicon
from tools.embedded.dice import Dice, capital, listing
from tools.embedded.lexicon import rows, words

_VEGETABLES = words(
    "carrots,onions,potatoes,leeks,beans,tomatoes,mushrooms,peppers,lentils,peas,"
    "courgettes,turnips,cabbage,spinach"
)
_FLAVOURS = words(
    "salt,pepper,thyme,garlic,ginger,cumin,lemon juice,parsley,paprika,basil,bay leaf,nutmeg"
)
_DISHES = words("soup,stew,pie,salad,bake,curry,casserole,omelette")
# machine, part that wears, tool, sign of the fault, what must be off first
_REPAIRS = rows("""
    bicycle | chain | chain tool | it slips under load | the rear wheel
    tap | washer | spanner | it drips all night | the water
    lamp | switch | screwdriver | it flickers | the current
    printer | roller | soft cloth | it pulls two sheets at once | the power
    door | hinge | screwdriver | it scrapes over the floor | the handle
    pump | seal | spanner | it loses pressure | the motor
    clock | spring | tweezers | it runs slow | the glass
    sewing machine | needle | small screwdriver | it skips stitches | the power
    window | rubber seal | knife | there is a draught | the curtain
    guitar | string | peg winder | it will not stay in tune | the capo
""")


def _numbered(dice: Dice, steps: list[str]) -> str:
    if dice.chance(0.3):
        return "\n".join(f"- [ ] {step}" for step in steps)
    form = dice.pick(("{}. ", "{}) ", "Step {}: "))
    return "\n".join(form.format(i) + step for i, step in enumerate(steps, 1))


def _cooking(dice: Dice) -> str:
    first, second, third = dice.sample(_VEGETABLES, 3)
    spices, dish, people = dice.sample(_FLAVOURS, 2), dice.pick(_DISHES), dice.integer(2, 8)
    grams, minutes, rest = dice.integer(2, 16) * 50, dice.integer(2, 9) * 5, dice.integer(2, 10)
    parts = [
        f"- {grams} g {first}",
        f"- {people} {dice.pick(('cups', 'handfuls', 'spoons'))} of {second}",
        f"- {dice.integer(1, 6) * 100} g {third}",
        *(f"- {spice}" for spice in spices),
    ]
    steps = [
        dice.say("[Wash|Rinse|Peel] the {a} and the {b}.", a=first, b=second),
        dice.say("[Cut|Chop|Slice] the {a} [finely|into cubes|into strips].", a=first),
        dice.say("[Warm|Heat] [some oil|a little butter] in a [pan|pot] and add the {a}.", a=first),
        dice.say("After {r} minutes add the {b}[| and the {c}].", r=rest, b=second, c=third),
        dice.say("[Stir in|Season with] {s}[| and taste].", s=listing(spices)),
        dice.say(
            "[Cook|Simmer|Bake] for {m} minutes[, stirring now and then|, covered|].", m=minutes
        ),
        dice.say(
            "Let the {d} rest for {r} minutes and serve it to {p} people.",
            d=dish,
            r=rest,
            p=lexicon.number(people),
        ),
    ]
    title = capital(
        dice.say(
            dice.pick(("{a} {d} with {b}", "{d} of {a} and {b}")),
            a=first.removesuffix("s"),
            b=second,
            d=dish,
        )
    )
    return (
        f"# {title}\n\nFor {people} people, about {minutes + 2 * rest} minutes of cooking.\n\n"
        + "\n".join(parts)
        + "\n\n"
        + _numbered(dice, steps)
    )


def _repair(dice: Dice) -> str:
    machine, part, tool, sign, off = dice.pick(_REPAIRS)
    owner, wait = dice.pick(lexicon.WOMEN + lexicon.MEN), dice.integer(2, 30)
    steps = [
        dice.say("[Turn off|Remove|Take away] {o}[| and wait {w} minutes].", o=off, w=wait),
        dice.say("[Find|Locate] the old {p}[| and note how it sits].", p=part),
        dice.say(
            "[Loosen|Free] the {p} with the {t}; [do not force it|keep the small parts].",
            p=part,
            t=tool,
        ),
        dice.say("[Clean|Wipe] the place where the {p} was.", p=part),
        dice.say("Put in the new {p}[|, the marked side up].", p=part),
        dice.say("[Tighten|Fix] it with the {t}[|, but not too hard].", t=tool),
        dice.say("Put back {o} and test the {m}.", o=off, m=machine),
    ]
    intro = dice.say(
        "[How to replace the {p} of a {m}|Replacing the {p}|{n}'s {m}: a new {p}]\n\n"
        "[When the {m} is worn, {s}.|{n} [says|writes] of the {m} that {s}.] "
        "[Most often|In nine cases of ten] the {p} is to blame. You need a new {p} and a {t}.",
        p=part,
        m=machine,
        n=owner,
        s=sign,
        t=tool,
    )
    close = dice.say(
        "[If {s} even now|Should it be that {s} still], the {p} [was not the cause|sits badly]: "
        "[ask someone who knows the {m}|begin again with step 1].",
        s=sign,
        p=part,
        m=machine,
    )
    return f"{intro}\n\n{_numbered(dice, steps)}" + (f"\n\n{close}" if dice.chance(0.6) else "")


def _command_line(dice: Dice) -> str:
    tool, folder = lexicon.coined(dice), dice.pick(lexicon.GOODS)
    port, version = dice.integer(1024, 9999), f"{dice.integer(1, 9)}.{dice.integer(0, 30)}"
    steps = [
        dice.say(
            "Download `{t}-{v}.tar.gz` and unpack it:\n\n"
            "   ```\n   tar xf {t}-{v}.tar.gz\n   cd {t}-{v}\n   ```",
            t=tool,
            v=version,
        ),
        dice.say(
            "[Create|Make] a folder for the data:\n\n   ```\n   mkdir -p /srv/{f}\n   ```", f=folder
        ),
        dice.say(
            "[Write|Put] the [following|lines below] into `{t}.conf`:\n\n"
            "   ```\n   data = /srv/{f}\n   port = {p}\n   ```",
            t=tool,
            f=folder,
            p=port,
        ),
        dice.say("Start the service with `./{t} --config {t}.conf`.", t=tool),
        dice.say(
            "[Open|Visit] `localhost:{p}` [in a browser|and log in]; "
            "version {v} [should be|is] shown.",
            p=port,
            v=version,
        ),
    ]
    close = dice.say(
        "[To remove {t}|To start afresh], stop it and delete `/srv/{f}`.", t=tool, f=folder
    )
    return (
        f"## Installing {tool} {version}\n\n"
        + "\n".join(f"{i}. {s}" for i, s in enumerate(steps, 1))
        + f"\n\n{close}"
    )


def guide(dice: Dice) -> str:
    """Instructions in order, whose ingredients, parts and paths recur."""
    return dice.pick((_cooking, _repair, _command_line))(dice)
