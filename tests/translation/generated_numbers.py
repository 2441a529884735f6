"""Pairs of sentences with quantities, prices, dates and times in five languages, each written as its locale does; half
of the translations are wrong by a factor of ten, by a digit, or in the unit."""

import random
from collections.abc import Iterator

LANGUAGES = ("en", "de", "fr", "es", "zh")
MONTHS = {
    "en": ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December"],
    "de": ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober",
           "November", "Dezember"],
    "fr": ["janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre",
           "novembre", "décembre"],
    "es": ["enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre",
           "noviembre", "diciembre"],
}
GROUPS = {"en": [","], "de": [".", "\u202f", "\xa0", " ", ""], "fr": ["\u202f", "\xa0", " ", "\u2009"],
          "es": [".", " ", "\xa0", ""], "zh": [",", "", "，"]}
UNITS = {
    "mg": ["milligrams", "Milligramm", "milligrammes", "miligramos", "毫克"], "g": ["grams", "Gramm", "grammes",
        "gramos", "克"],
    "kg": ["kilograms", "Kilogramm", "kilogrammes", "kilogramos", "公斤"], "km": ["kilometres", "Kilometer",
        "kilomètres", "kilómetros", "公里"],
    "m": ["metres", "Meter", "mètres", "metros", "米"], "cm": ["centimetres", "Zentimeter", "centimètres",
        "centímetros", "厘米"],
    "mm": ["millimetres", "Millimeter", "millimètres", "milímetros", "毫米"], "l": ["litres", "Liter", "litres",
        "litros", "升"],
    "ml": ["millilitres", "Milliliter", "millilitres", "mililitros", "毫升"], "px": ["pixels", "Pixel", "pixels",
        "píxeles", "像素"],
    "MiB": ["MiB"] * 5, "MB": ["megabytes", "Megabyte", "MB", "megabytes", "MB"], "GB": ["gigabytes", "Gigabyte",
        "GB", "gigabytes", "GB"],
    "kB": ["kB"] * 5, "%": ["percent", "Prozent", "pour cent", "por ciento", "%"],
    "°C": ["degrees Celsius", "Grad Celsius", "degrés Celsius", "grados Celsius", "摄氏度"], "kW": ["kW"] * 5,
        "MW": ["MW"] * 5,
    "min": ["minutes", "Minuten", "minutes", "minutos", "分钟"], "h": ["hours", "Stunden", "heures", "horas", "小时"],
    "d": ["days", "Tage", "jours", "días", "天"], "w": ["weeks", "Wochen", "semaines", "semanas", "周"],
}
OTHER_UNITS = [["mg", "g", "kg"], ["km", "m", "cm", "mm"], ["l", "ml"], ["MiB", "MB", "GB", "kB"], ["kW", "MW"],
               ["min", "h", "d", "w"], ["px", "mm"], ["%", "kg"], ["°C", "km"]]
CURRENCIES = {"$": ("USD", ["dollars", "Dollar", "dollars", "dólares", "美元"]), "€": ("EUR", ["euros", "Euro",
    "euros", "euros", "欧元"]),
              "£": ("GBP", ["pounds", "Pfund", "livres sterling", "libras", "英镑"])}
SENTENCES = {
    "quantity": ["The label says {} exactly.", "Auf dem Etikett steht genau {}.",
        "L'étiquette indique exactement {}.", "La etiqueta indica exactamente {}.", "标签上写着{}。"],
    "price": ["The repair cost us {} last year.", "Die Reparatur hat uns voriges Jahr {} gekostet.",
        "La réparation nous a coûté {} l'an dernier.", "La reparación nos costó {} el año pasado.",
        "去年修理花了我们{}。"],
    "date": ["The contract ends on {}.", "Der Vertrag endet am {}.", "Le contrat se termine le {}.",
        "El contrato termina el {}.", "合同于{}到期。"],
    "time": ["The ferry leaves at {}.", "Die Fähre legt um {} ab.", "Le ferry part à {}.", "El ferri sale a las {}.",
        "渡轮{}开。"],
    "count": ["The archive holds {} letters.", "Das Archiv besitzt {} Briefe.", "Les archives possèdent {} lettres.",
        "El archivo tiene {} cartas.", "档案馆藏有{}封信。"],
    "decimal": ["The coefficient is {} in this case.", "Der Koeffizient beträgt hier {}.",
        "Le coefficient vaut ici {}.", "El coeficiente es aquí {}.", "这里的系数是{}。"],
    "millions": ["The city has {} inhabitants.", "Die Stadt hat {} Einwohner.", "La ville compte {} habitants.",
        "La ciudad tiene {} habitantes.", "该市有{}居民。"],
}
MILLIONS = {"en": [" million", " million"], "de": [" Millionen", " Mio."], "fr": [" millions d'", " M d'"],
    "es": [" millones de", " millones de"], "zh": ["万", "万"]}


def written(value: str, language: str, random: random.Random) -> str:
    """Write a number, which is given as in "12000.50", as the locale does."""
    whole, _, fraction = value.partition(".")
    separator = random.choice(GROUPS[language])
    if len(whole) > 3 and (len(whole) > 4 or random.random() < 0.8):
        groups, rest = [], whole
        while rest:
            groups.insert(0, rest[-3:])
            rest = rest[:-3]
        whole = separator.join(groups)
    text = whole + (("." if language in ("en", "zh") else ",") + fraction if fraction else "")
    wide = language == "zh" and ("，" in text or random.random() < 0.2)
    return text.translate(str.maketrans("0123456789.,", "０１２３４５６７８９．，")) if wide else text


def render(kind: str, value, language: str, random: random.Random) -> str:
    index = LANGUAGES.index(language)
    space = random.choice(["\xa0", " ", "\u202f"] if language == "fr" else [" ", " ", "\xa0", ""])
    if kind in ("count", "decimal"):
        return written(value, language, random)
    if kind == "quantity":
        number, unit = value
        text = written(number, language, random)
        if unit in ("d", "w") or random.random() < 0.5:
            word = UNITS[unit][index]
            return text + ("" if language == "zh" else " ") + word
        return text + space + ("L" if unit == "l" and random.random() < 0.3 else unit)
    if kind == "price":
        number, symbol = value
        text, (code, words) = written(number, language, random), CURRENCIES[symbol]
        choice = random.random()
        if choice < 0.3:
            return text + ("" if language == "zh" else " ") + words[index]
        if choice < 0.5:
            return f"{code} {text}" if language in ("en", "de") else f"{text} {code}"
        return symbol + text if language in ("en", "zh") else text + (space or " ") + symbol
    if kind == "millions":
        if language == "zh":
            number = f"{float(value) * 100:.4f}".rstrip("0").rstrip(".")
            return number + "万"
        if random.random() < 0.4:
            return written(str(round(float(value) * 1_000_000)), language, random)
        return written(value, language, random) + random.choice(MILLIONS[language])
    if kind == "date":
        year, month, day = value
        if language == "zh":
            return random.choice([f"{year}年{month}月{day}日", f"{year}-{month:02}-{day:02}"])
        name = MONTHS[language][month - 1]
        return random.choice({
            "en": [f"{name} {day}, {year}", f"{day} {name} {year}", f"{month}/{day}/{year}",
                f"{year}-{month:02}-{day:02}",
                   f"{name} {day}th, {year}"],
            "de": [f"{day}. {name} {year}", f"{day:02}.{month:02}.{year}", f"{day}.{month}.{year}"],
            "fr": [f"{day} {name} {year}", f"{day:02}/{month:02}/{year}"],
            "es": [f"{day} de {name} de {year}", f"{day:02}/{month:02}/{year}", f"{day}-{month}-{year}"],
        }[language])
    hour, minute = value
    half = "am" if hour < 12 else "pm"
    twelve = (hour - 1) % 12 + 1
    return random.choice({
        "en": [f"{twelve}:{minute:02} {half}", f"{twelve}:{minute:02}{random.choice([' ', ''])}{half[0]}.m.",
            f"{hour}:{minute:02}"],
        "de": [f"{hour}:{minute:02} Uhr", f"{hour}.{minute:02} Uhr", f"{hour:02}:{minute:02}"],
        "fr": [f"{hour}h{minute:02}", f"{hour} h {minute:02}", f"{hour}:{minute:02}"],
        "es": [f"{hour}:{minute:02}", f"{hour}.{minute:02} h", f"{hour}:{minute:02} h"],
        "zh": [f"{hour}:{minute:02}", f"{'上午' if hour < 12 else '下午'}{twelve}点{minute:02}分",
               f"{hour}时{minute:02}分"],
    }[language])


def drawn(kind: str, random: random.Random):
    if kind == "count":
        return str(random.choice([random.randint(2, 99), random.randint(100, 999), random.randint(1000, 9999),
            random.randint(1, 99) * 1000, random.randint(10_000, 9_999_999)]))
    if kind == "decimal":
        return random.choice([f"0.{random.randint(1, 99):02}", f"{random.randint(1, 99)}.{random.randint(1, 9)}",
            f"{random.randint(1000, 99999)}.{random.randint(1, 99):02}"])
    if kind == "quantity":
        number = random.choice([str(random.randint(2, 900)), f"{random.randint(0, 40)}.{random.randint(1, 9)}",
            str(random.randint(1, 40) * 500)])
        return number, random.choice(list(UNITS))
    if kind == "price":
        return random.choice([str(random.randint(2, 999)), f"{random.randint(1, 9999)}.{random.randint(10, 99)}",
            f"{random.randint(1, 40) * 50}"]), random.choice(list(CURRENCIES))
    if kind == "date":
        return random.randint(1950, 2030), random.randint(1, 12), random.randint(1, 28)
    if kind == "time":
        return random.randint(0, 23), random.randint(1, 59)
    return random.choice([str(random.randint(2, 40)), f"{random.randint(1, 20)}.{random.randint(1, 9)}"])


def changed_digit(number: str, random: random.Random) -> str:
    place = random.choice([place for place, digit in enumerate(number) if digit.isdigit()])
    first = place == 0
    return number[:place] + random.choice([digit for digit in "123456789" if digit != number[place]] if first else
                                          [digit for digit in "0123456789"
                                              if digit != number[place]]) + number[place + 1:]


def times_ten(number: str, random: random.Random) -> str:
    whole, _, fraction = number.partition(".")
    if fraction:
        return (whole + fraction[0] + ("." + fraction[1:] if fraction[1:] else "")).lstrip("0") or "0"
    return number + "0" if random.random() < 0.5 or not number.endswith("0") else number[:-1]


def wrong(kind: str, value, random: random.Random):
    if kind in ("count", "decimal", "millions"):
        return random.choice([changed_digit, times_ten])(value, random)
    if kind == "date":
        year, month, day = value
        return random.choice([(int(changed_digit(str(year), random)), month, day), (year, month, day % 28 + 1),
                              (year, month, day + 10 if day < 19 else day - 10), (year // 10, month, day)])
    if kind == "time":
        hour, minute = value
        return random.choice([((hour + random.choice([1, 2, 5, 10])) % 24, minute), (hour,
            (minute + random.choice([1, 5, 10, 20])) % 60)])
    number, unit = value
    others = [unit_ for group in (OTHER_UNITS if kind == "quantity" else [list(CURRENCIES)]) if unit in group
        for unit_ in group if unit_ != unit]
    return random.choice([(changed_digit(number, random), unit), (times_ten(number, random), unit), (number,
        random.choice(others))])


def generated_pairs(count: int, seed: int, sentences=SENTENCES) -> Iterator[tuple[str, str, str, str, bool]]:
    """Yield (source, translation, source language, target language, True if it is right)."""
    generator = random.Random(seed)
    for number in range(count):
        source_language, target_language = generator.sample(LANGUAGES, 2)
        kinds = generator.sample(list(sentences), generator.choice([1, 1, 2]))
        values = [drawn(kind, generator) for kind in kinds]
        is_right = number % 2 == 0
        others = list(values)
        if not is_right:
            index = generator.randrange(len(kinds))
            others[index] = wrong(kinds[index], values[index], generator)
        yield (*(" ".join(sentences[kind][LANGUAGES.index(language)].format(render(kind, value, language, generator))
                          for kind, value in zip(kinds, which, strict=True))
                 for language, which in ((source_language, values), (target_language, others))),
               source_language, target_language, is_right)
