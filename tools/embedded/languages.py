"""Short notes in twelve languages from templates whose slots need no agreement."""

# ruff: noqa: RUF001 (letters of other languages are meant)
from tools.embedded import lexicon
from tools.embedded.dice import Dice

# {n} and {m} are names, {t} a town, {h} a clock time, {k} and {j} numbers above one, {d} one of the
# days, {o} one of the things (each with its article, so that the templates need no agreement).
_NOTES: dict[str, dict[str, str]] = {
    "de": {
        "days": "am Montag|am Dienstag|am Mittwoch|am Donnerstag|am Freitag|am Samstag|am Sonntag",
        "things": "die Schlüssel|die Bücher|die Karten|die Fotos|die Briefe|die Werkzeuge",
        "open": (
            "Liebe Grüße aus {t}, {n}!|Hallo {n}, ich bin gut in {t} angekommen.|"
            "{n}, nur eine kurze Nachricht aus {t}."
        ),
        "body": (
            "Der Zug fährt {d} um {h} Uhr.|Bitte bring {o} mit, wenn du {d} kommst.|"
            "Wir sind {k} Personen und brauchen {j} Stühle.|{m} hat {o} noch nicht gefunden.|"
            "Das Wetter ist seit {k} Tagen schlecht.|In {t} haben wir {m} getroffen.|"
            "Um {h} Uhr essen wir zusammen."
        ),
        "close": "Bis bald, {m}|Viele Grüße, {m}|Melde dich, wenn du in {t} bist. {m}",
    },
    "fr": {
        "days": "lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche",
        "things": "les clés|les livres|les cartes|les photos|les lettres|les outils",
        "open": "Bonjour {n}, je suis bien à {t}.|Un petit mot de {t}, {n}.|Salut {n} !",
        "body": (
            "Le train part {d} à {h}.|N'oublie pas {o}, s'il te plaît.|"
            "Nous serons {k} à table et il faut {j} chaises.|{m} cherche encore {o}.|"
            "Il pleut depuis {k} jours.|À {t}, nous avons vu {m}.|"
            "On se retrouve {d} devant la gare."
        ),
        "close": "À bientôt, {m}|Je t'embrasse, {m}|Amitiés de {t}, {m}",
    },
    "es": {
        "days": "el lunes|el martes|el miércoles|el jueves|el viernes|el sábado|el domingo",
        "things": "las llaves|los libros|los mapas|las fotos|las cartas|las herramientas",
        "open": (
            "Hola, {n}, ya estoy en {t}.|Hola otra vez, {n}: te escribo desde {t}.|"
            "{n}, unas líneas desde {t}."
        ),
        "body": (
            "El tren sale {d} a las {h}.|Trae {o}, por favor.|"
            "Somos {k} personas y faltan {j} sillas.|{m} todavía busca {o}.|"
            "Hace {k} días que llueve.|En {t} vimos a {m}.|Nos vemos {d} en la plaza."
        ),
        "close": "Hasta pronto, {m}|Un abrazo, {m}|Saludos desde {t}, {m}",
    },
    "it": {
        "days": "lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenica",
        "things": "le chiavi|i libri|le mappe|le foto|le lettere|gli attrezzi",
        "open": "Ciao {n}, sono a {t}.|Un saluto da {t}, {n}!|{n}, due righe da {t}.",
        "body": (
            "Il treno parte {d} alle {h}.|Porta {o}, per favore.|"
            "Siamo in {k} e servono {j} sedie.|{m} non trova {o}.|Piove da {k} giorni.|"
            "A {t} abbiamo incontrato {m}.|Ci vediamo {d} davanti alla chiesa."
        ),
        "close": "A presto, {m}|Un abbraccio, {m}|Saluti da {t}, {m}",
    },
    "pt": {
        "days": (
            "na segunda-feira|na terça-feira|na quarta-feira|na quinta-feira|na sexta-feira|"
            "no sábado|no domingo"
        ),
        "things": "as chaves|os livros|os mapas|as fotos|as cartas|as ferramentas",
        "open": "Olá, {n}, já cheguei a {t}.|{n}, escrevo de {t}.|Bom dia, {n}!",
        "body": (
            "O comboio parte {d} às {h}.|Traz {o}, por favor.|"
            "Somos {k} pessoas e faltam {j} cadeiras.|{m} ainda procura {o}.|Chove há {k} dias.|"
            "Em {t} encontrámos {m}.|Vemo-nos {d} na praça."
        ),
        "close": "Até breve, {m}|Um abraço, {m}|Cumprimentos de {t}, {m}",
    },
    "nl": {
        "days": "op maandag|op dinsdag|op woensdag|op donderdag|op vrijdag|op zaterdag|op zondag",
        "things": "de sleutels|de boeken|de kaarten|de foto's|de brieven|het gereedschap",
        "open": "Dag {n}, ik ben in {t}.|Groeten uit {t}, {n}!|{n}, een kort bericht uit {t}.",
        "body": (
            "De trein vertrekt {d} om {h} uur.|Neem {o} mee, alsjeblieft.|"
            "We zijn met {k} mensen en hebben {j} stoelen nodig.|{m} zoekt nog naar {o}.|"
            "Het regent al {k} dagen.|In {t} zagen we {m}.|Tot {h} uur zijn we thuis."
        ),
        "close": "Tot gauw, {m}|Hartelijke groeten, {m}|Veel groeten uit {t}, {m}",
    },
    "sv": {
        "days": "på måndag|på tisdag|på onsdag|på torsdag|på fredag|på lördag|på söndag",
        "things": "nycklarna|böckerna|kartorna|bilderna|breven|verktygen",
        "open": "Hej {n}, jag är i {t}.|Hälsningar från {t}, {n}!|{n}, bara några rader från {t}.",
        "body": (
            "Tåget går {d} klockan {h}.|Ta med {o}, är du snäll.|"
            "Vi är {k} personer och behöver {j} stolar.|{m} letar fortfarande efter {o}.|"
            "Det har regnat i {k} dagar.|I {t} träffade vi {m}.|Vi ses {d} vid bron."
        ),
        "close": "Vi ses snart, {m}|Många hälsningar, {m}|Ha det bra! {m}",
    },
    "pl": {
        "days": "w poniedziałek|we wtorek|w środę|w czwartek|w piątek|w sobotę|w niedzielę",
        "things": "klucze|książki|mapy|zdjęcia|listy|narzędzia",
        "open": "Cześć, tu {n}.|Pozdrowienia z podróży, {n}!|Dzień dobry, {n}!",
        "body": (
            "Pociąg odjeżdża {d} o {h}.|Proszę, weź {o}.|"
            "Numer pokoju to {k}, a numer stolika {j}.|{m} ciągle szuka, gdzie są {o}.|"
            "Pada już {k} dni.|Spotkamy się {d} przed dworcem.|Kolacja jest o {h}."
        ),
        "close": "Do zobaczenia, {m}|Pozdrawiam, {m}|Na razie, {m}",
    },
    "ru": {
        "days": "в понедельник|во вторник|в среду|в четверг|в пятницу|в субботу|в воскресенье",
        "things": "ключи|книги|карты|фотографии|письма|инструменты",
        "open": "Привет, {n}!|Добрый день, {n}!|{n}, пишу коротко.",
        "body": (
            "Поезд отходит {d} в {h}.|Возьми, пожалуйста, {o}.|"
            "Номер комнаты {k}, номер стола {j}.|Мы всё ещё ищем {o}.|Встретимся {d} у вокзала.|"
            "Ужин будет в {h}.|Погода плохая, но {d} обещают солнце."
        ),
        "close": "До встречи, {m}|Всего доброго, {m}|Пока! {m}",
    },
    "tr": {
        "days": "pazartesi|salı|çarşamba|perşembe|cuma|cumartesi|pazar",
        "things": "anahtarları|kitapları|haritaları|fotoğrafları|mektupları|aletleri",
        "open": "Merhaba {n}!|Günaydın {n}, ben yoldayım.|{n}, kısa bir not yazıyorum.",
        "body": (
            "Tren {d} günü saat {h} için hazır.|Lütfen {o} getir.|"
            "Biz {k} kişiyiz ve {j} sandalye gerekiyor.|{m} hâlâ {o} arıyor.|"
            "Yağmur {k} gündür yağıyor.|Akşam yemeği saat {h}.|{d} günü köprüde buluşalım."
        ),
        "close": "Görüşürüz, {m}|Selamlar, {m}|Sevgiler, {m}",
    },
    "zh": {
        "days": "星期一|星期二|星期三|星期四|星期五|星期六|星期日",
        "things": "钥匙|书|地图|照片|信|工具",
        "open": "{n}，你好！|{n}，我已经到了{t}。|给{n}的便条。",
        "body": (
            "火车{d}{h}出发。|请把{o}带来。|我们有{k}个人，需要{j}把椅子。|{m}还在找{o}。|雨已经下了{k}天。|我们{d}在车站见面。|晚饭{h}开始。"
        ),
        "close": "再见，{m}|祝好，{m}|{m}上",
    },
    "ja": {
        "days": "月曜日|火曜日|水曜日|木曜日|金曜日|土曜日|日曜日",
        "things": "鍵|本|地図|写真|手紙|道具",
        "open": "{n}さん、こんにちは。|{n}さん、{t}に着きました。|{n}さんへ",
        "body": (
            "電車は{d}の{h}に出ます。|{o}を持ってきてください。|私たちは{k}人で、椅子が{j}脚いります。|{m}さんはまだ{o}を探しています。|"
            "雨が{k}日続いています。|{d}に駅で会いましょう。|夕食は{h}からです。"
        ),
        "close": "またね。{m}|よろしくお願いします。{m}|では、{m}より",
    },
}

LANGUAGES = tuple(_NOTES)


def _letter(dice: Dice, parts: dict[str, str], joiner: str) -> str:
    def one(part: str) -> str:
        return dice.pick(parts[part].split("|"))

    name, other = dice.sample(lexicon.WOMEN + lexicon.MEN, 2)
    slots = {
        "n": name,
        "m": other,
        "t": lexicon.town(dice),
        "h": f"{dice.integer(5, 23)}:{dice.integer(0, 11) * 5:02d}",
        "k": dice.integer(5, 9),
        "j": dice.integer(10, 20),
        "d": one("days"),
        "o": one("things"),
    }
    opening = one("open")
    body = dice.sample(parts["body"].split("|"), dice.integer(2, 5))
    lines = [opening, *body, one("close")]
    filled = [line.format(**slots) for line in lines]
    return joiner.join(line[:1].upper() + line[1:] for line in filled)


def note(dice: Dice, language: str | None = None) -> str:
    """One to three notes in one language, drawn when not given, each about its own people."""
    language = language or dice.pick(LANGUAGES)
    gap = "" if language in ("zh", "ja") else " "
    joiner = gap if dice.chance(0.7) else "\n"
    return "\n\n".join(_letter(dice, _NOTES[language], joiner) for _ in range(dice.integer(1, 3)))
