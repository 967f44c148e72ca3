"""Words that the generators share, and names that they invent."""

from tools.embedded.dice import Dice


def words(text: str, mark: str = ",") -> tuple[str, ...]:
    """The words that the text lists."""
    return tuple(text.split(mark))


def rows(text: str) -> tuple[tuple[str, ...], ...]:
    """The cells of a table written between bars; a row whose line ends in a bar goes on."""
    lines = text.strip().replace("|\n", "|").splitlines()
    return tuple(tuple(cell.strip() for cell in line.split("|")) for line in lines)


WOMEN = words(
    "Ada Anna Asta Bela Carla Clara Dora Edith Ella Elsa Emma Erika Fanny Flora Freya Greta Hanna "
    "Helen Ida Ines Irma Jana Julia Karin Lena Lotte Maria Marta Mina Nadia Nina Nora Olga Paula "
    "Rosa Ruth Sara Selma Sofia Tessa Thea Vera Wanda Yara Zelda",
    " ",
)
MEN = words(
    "Adam Anton Arno Boris Bruno Carl David Edgar Emil Erik Felix Frank Georg Hans Henry Hugo Ivan "
    "Jacob Jonas Karl Lars Leo Linus Lukas Martin Max Nils Oskar Otto Paul Peter Philip Ralph "
    "Robert Samuel Simon Stefan Theo Thomas Tobias Ulric Victor Walter Yannick",
    " ",
)
TRADES = words(
    "baker,carpenter,clockmaker,doctor,engineer,ferryman,fisher,gardener,glazier,librarian,mason,"
    "miller,nurse,painter,pilot,potter,printer,shepherd,surveyor,tailor,teacher,weaver,smith,"
    "beekeeper,bookbinder,cook,astronomer,signal keeper,apothecary,archivist"
)
PLACES = words(
    "harbour,mill,library,market,station,chapel,orchard,bridge,workshop,lighthouse,school,bakery,"
    "garden,quarry,inn,town hall,boathouse,observatory,post office,greenhouse,cellar,tower,"
    "courtyard,stable,theatre,canal,hospital,barn,museum,vineyard"
)
OBJECTS = words(
    "key,lantern,compass,letter,map,ring,watch,violin,kettle,box,knife,mirror,notebook,basket,bell,"
    "coin,flute,hammer,scarf,ladder,telescope,umbrella,chess set,cup,rope,medal,brush,clock,"
    "camera,saddle,drum,jar,whistle,chair,suitcase"
)
COLOURS = words("red,blue,green,yellow,black,white,grey,brown,silver,golden,dark,pale")
MATERIALS = words(
    "wooden,iron,copper,brass,leather,glass,stone,tin,silver,clay,ivory,steel,bronze,oak"
)
GOODS = words(
    "apples,pears,plums,eggs,candles,bricks,nails,books,tiles,bottles,loaves,onions,lemons,ropes,"
    "blankets,plates,cups,boards,sacks,barrels,melons,postcards,buttons,pencils,seedlings"
)
FEELINGS = words("tired,curious,worried,glad,calm,proud,uneasy,hopeful,angry,surprised,sad,content")
WEATHER = words("rain,fog,snow,wind,sunshine,frost,a storm,heat,drizzle,hail,clear sky,thunder")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = words(
    "January February March April May June July August September October November December", " "
)
NUMBERS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty",
    " ",
)

_HEADS = words(
    "al an ar bar bel bren cal cor dal dor el fal fen gar gil hal hol il jor kal kes lan lor mar "
    "mel mor nar nor ol or pel quin ral ren ros sal sel sol tam tel tor ul val ver vol wel yor "
    "zan",
    " ",
)
_MIDDLES = words("a e i o u an en in on ar er or al el ol ada eli ora uri iva eno", " ")
_TAILS = words(
    "dan den din don gard kin lan las len lin mar mer nis rin ris sen sor tas ten ton "
    "va ver vik win",
    " ",
)
_TOWN_TAILS = words(
    "berg bridge by dale ferry field ford gate ham haven holm mouth port stead "
    "stow ton vale wick worth",
    " ",
)


def surname(dice: Dice) -> str:
    """An invented family name of two or three syllables."""
    middle = dice.pick(_MIDDLES) if dice.chance(0.6) else ""
    return (dice.pick(_HEADS) + middle + dice.pick(_TAILS)).capitalize()


def town(dice: Dice) -> str:
    """An invented town."""
    middle = dice.pick(_MIDDLES) if dice.chance(0.4) else ""
    return (dice.pick(_HEADS) + middle + dice.pick(_TOWN_TAILS)).capitalize()


def coined(dice: Dice) -> str:
    """An invented common noun, lower case, as for a product, a pet or a plant."""
    return dice.pick(_HEADS) + dice.pick(_MIDDLES) + dice.pick(_TAILS)


def number(value: int) -> str:
    """The number in words up to twenty, in digits above."""
    return NUMBERS[value] if value <= 20 else str(value)


def thing(dice: Dice) -> str:
    """An object with a colour or a material, such as "brass key"."""
    return f"{dice.pick(COLOURS + MATERIALS)} {dice.pick(OBJECTS)}"


def date(dice: Dice) -> str:
    """A date in words, such as "14 March 1893"."""
    return f"{dice.integer(1, 28)} {dice.pick(MONTHS)} {dice.integer(1750, 2025)}"
