"""Stories in the past tense whose people, things, places, counts and days stay what they were."""

from dataclasses import dataclass, field

from tools.embedded import lexicon
from tools.embedded.dice import Dice, article, capital


@dataclass
class World:
    """What is true at this point of a story."""

    dice: Dice
    hero: str
    family: str
    trade: str
    he: str
    him: str
    his: str
    friend: str
    friend_he: str
    friend_his: str
    town: str
    thing: str
    place: str
    other: str
    goods: str
    count: int
    day: int
    events: list[str] = field(default_factory=list)

    def tell(self, template: str, **more: object) -> None:
        """Add a paragraph's next sentences, chosen and filled from the world."""
        facts = {name: value for name, value in vars(self).items() if isinstance(value, str)}
        facts |= {
            "thing_noun": self.thing.split(" ", 1)[1],
            "a_thing": article(self.thing),
            "a_trade": article(self.trade),
            "He": capital(self.he),
            "His": capital(self.his),
            "today": lexicon.DAYS[self.day],
            "n": lexicon.number(self.count),
        }
        self.events.append(self.dice.say(template, **(facts | more)))


def _people(dice: Dice) -> tuple[tuple[str, str, str, str], tuple[str, str, str, str]]:
    def person(taken: str) -> tuple[str, str, str, str]:
        woman = dice.chance(0.5)
        names = [name for name in (lexicon.WOMEN if woman else lexicon.MEN) if name != taken]
        return (dice.pick(names), *(("she", "her", "her") if woman else ("he", "him", "his")))

    first = person("")
    return first, person(first[0])


def _world(dice: Dice) -> World:
    (hero, he, him, his), (friend, friend_he, _, friend_his) = _people(dice)
    place, other = dice.sample(lexicon.PLACES, 2)
    return World(
        dice,
        hero,
        lexicon.surname(dice),
        dice.pick(lexicon.TRADES),
        he,
        him,
        his,
        friend,
        friend_he,
        friend_his,
        lexicon.town(dice),
        lexicon.thing(dice),
        place,
        other,
        dice.pick(lexicon.GOODS),
        dice.integer(4, 20),
        dice.integer(0, 6),
    )


def _opening(world: World) -> None:
    weather = world.dice.pick(lexicon.WEATHER)
    world.tell(
        "[{hero} {family} was {a_trade} in {town}, and [nobody|hardly anyone] there [knew|could "
        "remember] a better one.|In the [small|old|quiet|busy] town of {town} lived {a_trade} "
        "[named|called] {hero} {family}.|On {today} [morning|evening] {hero} {family}, the {trade} "
        "of {town}, [came home late|could not sleep|was up early].] "
        "[There had been {weather} [all week|since noon|for three days].|After days of {weather} "
        "the streets were [empty|quiet|wet].|{weather_capital} had been expected, and it came.] "
        "{He} [kept|owned] [just one thing of value|few things that mattered], {a_thing} that "
        "[{his} [mother|father|uncle|aunt|grandmother] had left {him}|{friend} had once given "
        "{him}|{he} had bought at the {place}].",
        weather=weather,
        weather_capital=capital(weather),
    )


def _loss(world: World) -> None:
    world.tell(
        "[On {today}|That {today}] the {thing} was gone. {hero} [looked|searched] [under the bed|"
        "in every drawer|behind the stove|on the shelf], then [in the cellar|in the yard|on the "
        'stairs], and found [nothing|only dust|an old button]. "[Who would want|Who takes] '
        '{a_thing}?" {he} [asked|said]. [Nobody answered.|The house was silent.|Only the clock '
        "answered.]"
    )


def _visit(world: World) -> None:
    feeling = world.dice.pick(lexicon.FEELINGS)
    world.tell(
        "[So {hero}|{hero} put on {his} coat and|Without waiting, {hero}] went to the {place}, "
        "where {friend} [worked|was waiting|was busy with the accounts]. {friend} [looked|seemed] "
        '{feeling}. "[Have you seen|Do you know anything about] the {thing}?" {hero} [asked|'
        "wanted to know]. {friend} [shook {friend_his} head|thought for a while|put down "
        '{friend_his} pen]. "[The last time I saw the {thing_noun}|If I remember rightly], it was '
        'at the {other}," {friend_he} said.',
        feeling=feeling,
    )


def _journey(world: World) -> None:
    way = world.dice.pick(
        (
            "along the river",
            "over the hill",
            "through the fields",
            "past the old wall",
            "down the long street",
            "across the square",
        )
    )
    world.tell(
        "The way from the {place} to the {other} led {way}. [It took {hero} an hour|{hero} walked "
        "quickly|{hero} counted {his} steps|Halfway, {hero} stopped to rest], and [the bells of "
        "{town} rang|a dog followed {him}|the light was fading] [when {he} arrived|as {he} reached "
        "the door]. [Inside it was cold.|The door of the {other} stood open.|Somebody had left a "
        "lamp burning.]",
        way=way,
    )


def _counting(world: World) -> None:
    before, change = world.count, world.dice.integer(1, 3)
    gain = before - change < 2 or (world.dice.chance(0.5) and before + change <= 20)
    world.count = before + change if gain else before - change
    action = (
        "Then {friend} brought {change} more" if gain else "{friend} took {change} of them away"
    ).format(friend=world.friend, change=lexicon.number(change))
    world.tell(
        "[On the table|By the wall|In a basket] [there were|lay] {before} {goods}. {action}, so "
        "[that now there were {n}|that {n} were left|{hero} counted again and came to {n}]. "
        '["{n_capital} {goods}," {he} said, "[and no more|as I thought|not one too many]."|'
        "{He} wrote the number {n} in {his} notebook.]",
        before=lexicon.number(before),
        n_capital=capital(lexicon.number(world.count)),
        action=action,
    )


def _next_day(world: World) -> None:
    yesterday = lexicon.DAYS[world.day]
    world.day = (world.day + 1) % 7
    world.tell(
        "[{yesterday} ended [quietly|badly|without news], and {today} came.|After {yesterday} came "
        "{today}, [as it always does|and with it a letter|and nothing had changed].|The next day "
        "was {today}.] {hero} [told {friend} everything|made tea and thought of the {thing}|asked "
        'at the {place} again]. "[We shall find it|It cannot have gone far|Be patient]," said '
        "{friend}, [who was never in a hurry|and {friend_he} meant it|and poured another cup].",
        yesterday=yesterday,
    )


def _talk(world: World) -> None:
    helper = world.dice.pick(
        [n for n in lexicon.WOMEN + lexicon.MEN if n not in (world.hero, world.friend)]
    )
    trade = world.dice.pick([trade for trade in lexicon.TRADES if trade != world.trade])
    world.tell(
        '[At the {other}|In the street] they met {helper}, the {helper_trade}. "Good [morning|'
        'evening], {hero}," said {helper}. "[Are you still looking for the {thing}|Is it true '
        'that you lost the {thing}]?" "[I am|It is true]," said {hero}. "{friend} [is helping '
        'me|says it was at the {other}]." {helper} [nodded|laughed|frowned]. "[Ask at the {place}|'
        'I am only {a_helper_trade}|Then {friend} knows more than I do]," the {helper_trade} '
        "[answered|said], and [went on|turned away|wished them luck].",
        helper=helper,
        helper_trade=trade,
        a_helper_trade=article(trade),
    )


def _ending(world: World) -> None:
    world.tell(
        "[In the end|At last|It was already {today} evening when] {hero} found the {thing} [at the "
        "{other}, behind {n} {goods}|in the {other}, just where {friend} had said|under a pile of "
        "{goods} at the {other}]. [{He} held it up to the light.|{friend} laughed aloud.|Neither "
        "of them spoke.] [From that day on|Ever after|For many years], the {trade} [of {town} ]"
        "kept the {thing_noun} [in {his} pocket|above the door|close at hand], and when people "
        "asked about it, {hero} {family} [told them about {friend}|only smiled|said it had been "
        "away for a walk]."
    )


def story(dice: Dice) -> str:
    """A story of four to eight paragraphs with a title now and then."""
    world = _world(dice)
    _opening(world)
    _loss(world)
    for scene in dice.sample(
        (_visit, _journey, _counting, _next_day, _talk, _counting, _next_day), dice.integer(2, 6)
    ):
        scene(world)
    _ending(world)
    title = (
        dice.say(
            "[# |][The {thing}|{hero} and the {thing}|The {trade} of {town}]\n\n",
            thing=world.thing.title(),
            hero=world.hero,
            trade=world.trade,
            town=world.town,
        )
        if dice.chance(0.4)
        else ""
    )
    return title + "\n\n".join(world.events)
