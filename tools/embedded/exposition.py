"""Expository text: crafts and things of the real world, and invented towns with a dated history."""

from tools.embedded import lexicon
from tools.embedded.dice import Dice, article, capital, listing
from tools.embedded.lexicon import rows

# animal, class, where it lives, what it eats, its young, what it is known for
_ANIMALS = rows("""
    otter | mammal | rivers and lakes | fish and crayfish | pups |
      closing its nostrils under water
    heron | bird | shallow water | fish and frogs | chicks | standing motionless for minutes
    badger | mammal | woodland | earthworms and roots | cubs | digging large burrows
    salmon | fish | cold rivers and the sea | insects and small fish | fry |
      returning to the river of its birth
    owl | bird | forests and barns | mice and voles | owlets | flying without a sound
    hedgehog | mammal | hedges and gardens | beetles and slugs | hoglets | rolling into a ball
    honeybee | insect | hives and hollow trees | nectar and pollen | larvae |
      dancing to show the way to flowers
    tortoise | reptile | dry scrubland | leaves and grass | hatchlings |
      living longer than most animals
    toad | amphibian | damp gardens | insects and worms | tadpoles | walking rather than leaping
    beaver | mammal | streams with trees | bark and water plants | kits | building dams
    swallow | bird | open country | flying insects | nestlings |
      crossing deserts and seas each year
    bat | mammal | caves and attics | moths and beetles | pups | finding its way by echoes
""")
# product, raw material, steps in order, tool, fault that can occur, its cause
_CRAFTS = rows("""
    bread | flour | the flour is mixed with water and salt | the dough is kneaded |
      the dough rests until it has risen | the loaf is baked | oven | a dense crumb |
      too short a rest
    paper | wood fibre | the wood is ground to pulp | the pulp is thinned with water |
      the sheet is drawn on a screen | the sheet is pressed and dried | screen | thin spots |
      an uneven pulp
    glass | sand | the sand is mixed with soda and lime | the batch is melted |
      the melt is shaped | the piece is cooled slowly | furnace | cracks |
      cooling that was too quick
    cheese | milk | the milk is warmed | rennet is stirred in | the curd is cut and drained |
      the wheel ripens in a cellar | vat | a bitter taste | too much rennet
    leather | hide | the hide is soaked | the hair is scraped off | the hide is tanned with bark |
      the leather is oiled | tanning pit | stiffness | too little oil
    a violin | spruce and maple | the wood is dried for years | the ribs are bent over heat |
      the plates are carved and glued | the body is varnished | gouge | a dull tone |
      plates that are too thick
    soap | fat and lye | the lye is dissolved | the fat is melted |
      the two are stirred until they thicken | the bars are cut and cured | mould | a harsh bar |
      an excess of lye
    pottery | clay | the clay is wedged | the pot is thrown on the wheel |
      the pot dries in the shade | the pot is glazed and fired | kiln | bursting in the fire |
      air left in the clay
    steel | iron ore | the ore is smelted with coke | the pig iron is refined | the steel is cast |
      the billet is rolled | converter | brittleness | too much sulphur
    linen | flax | the flax is pulled | the stalks are soaked | the fibres are broken and combed |
      the yarn is spun and woven | loom | coarse cloth | fibres that were soaked too long
""")
# subject, for it, against it, when the first outweighs the second
_CLAIMS = rows("""
    night trains | they save a hotel night | they are slow |
      the journey takes more than six hours
    paper maps | they need no battery | they grow old | the road network hardly changes
    small schools | everyone knows everyone | they offer few subjects | the next town is far away
    written exams | they treat all alike | they reward memory | the questions ask for reasons
    city trees | they cool the streets | their roots lift the paving | they get enough room
    long meetings | every voice is heard | they tire everyone | there is an agenda
    wooden houses | they store carbon | they need care | the roof keeps them dry
    repairing old machines | it saves money | spare parts are rare | the drawings still exist
""")
_ORDINALS = ("First", "Second", "Third", "Finally")


def _animal(dice: Dice) -> str:
    name, kind, home, food, young, fame = dice.pick(_ANIMALS)
    litter, age = dice.integer(2, 9), dice.integer(3, 30)
    parts = [
        dice.say(
            "The {n} [lives|is found|makes its home] in {home}[| and is seldom seen by day|, "
            "though people rarely notice it].",
            n=name,
            home=home,
        ),
        dice.say(
            "It [eats|feeds on|lives on] {food}[|, which it finds in {home}].", food=food, home=home
        ),
        dice.say(
            "[A pair raises|In a good year there are] up to {k} {y}[|; the {y} stay with their "
            "[mother|parents] for {w} weeks].",
            k=lexicon.number(litter),
            y=young,
            w=lexicon.number(dice.integer(3, 12)),
        ),
        dice.say("[It is known for|What people remember is its habit of] {f}.", f=fame),
        dice.say(
            "[In the wild|With luck] {an} [reaches the age of|may live for] {a} years[|, but few "
            "do].",
            an=article(name),
            a=age,
        ),
    ]
    parts[0] = parts[0].replace(f"The {name}", "It", 1)
    opening = dice.say(
        "[The {n} is {a}.|{An}, {a} that everyone can name, deserves a closer look.]",
        n=name,
        a=article(kind),
        An=capital(article(name)),
    )
    close = dice.say(
        " [In short|To sum up]: {a} of {home} that eats {food}[| and is known for {f}].",
        a=article(kind),
        home=home,
        food=food,
        f=fame,
    )
    return opening + " " + " ".join(dice.shuffled(parts)) + (close if dice.chance(0.5) else "")


def _craft(dice: Dice) -> str:
    product, raw, *steps, tool, fault, cause = dice.pick(_CRAFTS)
    where, since = lexicon.town(dice), dice.integer(1400, 1900)
    opening = dice.say(
        "[How {p} is made|{P}, from the raw material to the finished piece|The making of {p}]\n\n"
        "[{P} begins with {r}.|All {p} starts as {r}.|Whoever wants to make {p} needs {r}.] In "
        "{w}, [it has been made|people have made it] since {s}[|, and the {t} there is still in "
        "use]. ",
        p=product,
        P=capital(product),
        r=raw,
        w=where,
        s=since,
        t=tool,
    )
    if dice.chance(0.5):
        middle = " ".join(f"{word}, {step}." for word, step in zip(_ORDINALS, steps, strict=True))
    else:
        middle = f"The work has four stages: {'; then '.join(steps)}."
    closing = dice.say(
        " [The most important tool is the {t}.|Without {a_t}, none of this would work.] [A common "
        "fault is|What goes wrong most often is] {f}, [caused by|which comes from] {c}. [If the "
        "cause is {c}|Where {f} appears], [nothing can be saved|the work must start again with "
        "fresh {r}]. [The workshop in {w} [makes|sells] about {k} [pieces|kilograms] a year.|]",
        t=tool,
        a_t=article(tool),
        f=fault,
        c=cause,
        r=raw,
        w=where,
        k=dice.integer(2, 90) * 50,
    )
    return opening + middle + closing


def _town(dice: Dice) -> str:
    name, river = lexicon.town(dice), lexicon.surname(dice)
    founded = dice.integer(900, 1700)
    founder = f"{dice.pick(lexicon.WOMEN + lexicon.MEN)} {lexicon.surname(dice)}"
    sights = dice.sample(lexicon.PLACES, 3)
    people = dice.integer(9, 480) * 100
    year, lines = founded, []
    for sight in sights:
        gap = dice.integer(1, 12) * 10
        year += gap
        lines.append(
            dice.say(
                "[{g} years later, in {y}, the {s} was [built|opened|finished].|The {s} followed "
                "in {y}, {g} years on.|In {y}, after another {g} years, {name} got its {s}.]",
                g=gap,
                y=year,
                s=sight,
                name=name,
            )
        )
    goods = dice.sample(lexicon.GOODS, 2)
    return dice.say(
        "[{name} is a town on the river {river}.|On the river {river} lies the town of {name}.] It "
        "was founded in {f} by {founder}[|, whose [statue|portrait] stands in the {s0}]. {history} "
        "[Today {name} has|The town now counts] {people} inhabitants, [who live mostly from|known "
        "for] {goods}. [Visitors come for the {s0}, the {s1} and the {s2}|The {s2}, the youngest "
        "of the three, draws the most visitors]. [From the founding in {f} to the opening of the "
        "{s2} in {y} it took {span} years.|The family of {last} still lives there.]",
        name=name,
        river=river,
        f=founded,
        founder=founder,
        s0=sights[0],
        s1=sights[1],
        s2=sights[2],
        history=" ".join(lines),
        people=f"{people:,}",
        goods=listing(goods),
        y=year,
        span=year - founded,
        last=founder.split()[1],
    )


def _argument(dice: Dice) -> str:
    subject, pro, con, condition = dice.pick(_CLAIMS)
    person = f"{dice.pick(lexicon.WOMEN + lexicon.MEN)} {lexicon.surname(dice)}"
    return dice.say(
        "[Opinions on {s} differ.|Few subjects divide the council of {town} like {s}.|Is there a "
        "case for {s}? There is.] [Those in favour say|Supporters point out] that {pro}. "
        "[Opponents reply|Critics answer] that {con}[|, and they are not wrong]. Both are right, "
        "[which is why|and so] the question is [not whether but when|one of measure]. {p}, "
        '{trade} and [writer|member of the council], [puts it this way|sums it up]: "If {cond}, I '
        'am for {s}; if not, I am against." [The point is well made|One may agree with {last}]: '
        "where {cond}, the fact that {con} [weighs little|can be borne], and that {pro} [counts "
        "for more|decides the matter]. [A trial of {k} months is planned; after {k} months the "
        "council will vote.|]",
        s=subject,
        pro=pro,
        con=con,
        cond=condition,
        p=person,
        last=person.split()[1],
        town=lexicon.town(dice),
        trade=dice.pick(lexicon.TRADES),
        k=dice.integer(3, 24),
    ).rstrip()


def essay(dice: Dice) -> str:
    """One to three short expository pieces under their headings or one after the other."""
    makers = dice.sample((_animal, _craft, _town, _argument, _animal, _town), dice.integer(1, 3))
    return "\n\n".join(maker(dice) for maker in makers)
