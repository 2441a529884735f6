"""Words that belong to numbers: units, multipliers such as million, number words and months.

Unknown words are not an error: a unit that is not in the table is not compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache, lru_cache
from itertools import pairwise

from seq2seq.languages import main_language

# Units that take prefixes: the prefixes (first letters of the lines of `_PREFIXES`, w to z for binary ones), symbols,
# and after "|" names. A symbol takes the short prefixes of its script, a name the long ones.
_SCALED_UNITS = """
kcdmµn m м | meter metre metro metr метр メートル 米
kmµ g г | gram gramme gramm gramo grammo grama грамм グラム 克
mcd l L л | liter litre litro litr литр リットル 升
kMGTwxyz B Б o | byte octet bajt байт バイト 字节
kMG bit b | бит ビット 比特
kMGm W Вт | watt wat vatio ватт ワット 瓦
kMG Wh кВтч Вт⋅ч W⋅h W·h | wattstunde watt-hour watt_hour wattheure watt-heure vatio_hora vatios_hora wattora watt-hora
    watts-hora watogodzin ватт-час ワット時 瓦时
km V В | volt voltio wolt вольт ボルト 伏
m A А | ampere ampère amperio amp ampero amper ампер アンペア 安
kMG Hz Гц | hertz hercio herc герц ヘルツ 赫
k cal кал | calorie kalorie caloria kaloria калори カロリー 卡
k J Дж | joule julio dżul джоул джоуль ジュール 焦
hkM Pa Па | pascal pascais paskal паскал паскаль パスカル 帕
m bar бар | バール 巴
"""
_PREFIXES = """
k K к kilo quilo chilo кило キロ 千
M М mega мега メガ 兆
G Г giga гига ギガ 吉
T Т tera тера テラ 太
c с centi zenti centy санти センチ 厘
d д deci dezi decy деци デシ 分
m м milli mili милли ミリ 毫
h г hecto hekto etto гекто ヘクト 百
µ μ mc мк micro mikro микро マイクロ 微
n н nano нано ナノ 纳
wKi kibi
xMi mebi
yGi gibi
zTi tebi
"""
# Other units: a line for each, with indented continuations; _ stands for a space. The first form is the name of the
# unit. Forms of up to two letters are compared with case, the others without case and accents, and with or without one
# of the endings of `_ENDINGS`.
_UNITS = """
km 公里 Stundenkilometer kph kmh
cm 公分 センチ
mm ミリ
mile mi meile mille milla milha miglio migli mila mili mil миля мили миль ми 英里 マイル mph
ft foot feet fuß pied pie pies pé pés pi stopa stopy stóp фут фт 英尺 フィート
inch inches inche zoll pouce pulgada polegada pollice pollici po cal cala cale cali дюйм 英寸 インチ
yd yard yarda jarda jard iarda ярд 码 ヤード
px pixel píxeles píxeis piksel пиксел пиксель пкс 像素 ピクセル 画素
pt point_size
m² qm кв.м 平米
ft² sqft
m³ cbm
ha hectare hektar hectárea ettaro гектар га 公顷 ヘクタール
kg kilo chili quilo 公斤 キロ
t т ton tonne tonelada tonnellata tonnellate tona metric_ton тонн 吨 噸 公吨 トン
lb lbs pound pfund libra livre libbra funt фунт фнт 磅 ポンド
oz ounce unze onza once oncia onça uncja uncji унци унц 盎司 オンス
gal gallon gallone galón galones 加仑 ガロン
% percent per_cent prozent pour_cent por_ciento por_cento per_cento
    percento procent процент 百分之 yüzde パーセント 퍼센트
‰ per_mille promille pour_mille por_mil 千分之
pp percentage_point prozentpunkt point_de_pourcentage punto_porcentual puntos_porcentuales 百分点
°C ℃ 摄氏度 摄氏 degree_centigrade degrees_centigrade
°F ℉ 华氏度 华氏
° degree grad degré grado gradi grau stopień stopni градус 度 derece
kelvin
kbit kbps
Mbit mbps
Gbit gbps
mAh
dB decibel dezibel decibelio decybel децибел дБ 分贝 デシベル
rpm
ms millisecond millisekunde milliseconde milisegundo millisecondo milissegundo milisekunda milisekund
    миллисекунд мс 毫秒 ミリ秒
s sec sek с second sekunde seconde segundo secondo sekunda sekund секунд сек 秒 秒钟 saniye
min minute minuto minut минут мин 分 分钟 分鐘 分间 分間 dakika
h hr hour hrs std stunde heure hora ora ore godzin godz ч час часа часов 小时 小時 個小时 時間 saat
d day tag tagen jour j dia giorno dzień dni dnia день дня дней дн 天 日 日間 gün
wk wks week woche semaine semana sem settimana sett tydzień tygodni tygodnie tydz tyg недел недель нед 周
    星期 个星期 週間 hafta
mo month mth mths monat mon mois meses mese mês miesiąc miesięcy mies месяц мес 个月 個月 か月 ヶ月
yr yrs year jahr jahren J année ans an ano anno rok roku lata lat год года лет г л 年 年间 年間 yıl
$ US$ USD dollar dolar доллар 美元 美圆 美圓 美金 ドル
A$ AU$ AUD 澳元
C$ CA$ CAD 加元
HK$ HKD 港元 港币
MX$ MXN
NZ$ NZD
€ euro eur евро 欧元 歐元 ユーロ avro
£ GBP pound pound_sterling pounds_sterling pfund livre livre_sterling livres_sterling libra libra_esterlina
    libras_esterlinas sterling sterlina funt фунт 英镑 英鎊 ポンド
JPY JP¥ ¥ yen iene jen иен 日元 日圆 日圓 円
CNY CN¥ ¥ RMB yuan юан 元 人民币 块 元人民币
CHF franken franc_suisse francs_suisses franco_suizo francos_suizos franco_svizzero franchi_svizzeri 瑞士法郎 Fr
₹ INR rupee rupie roupie rupia 卢比 ルピー
₽ RUB ruble rouble rubel rublo руб рубл 卢布 ルーブル
₩ KRW won 韩元 ウォン
₺ TRY TL lira
R$ BRL real reais
zł PLN złoty злот
kr krone krona kronen kronor SEK NOK DKK
¢ ct cent centime céntimo centavo
"""
_ENDINGS = ("s", "n", "e", "es", "en", "o", "os", "i", "a", "as", "y", "ow", "u",
            "а", "у", "ы", "и", "е", "я", "ю", "ов", "ев", "еи", "ам", "ами", "ах", "ом")
_DEGREES = re.compile(r"(?:\S+ )?(?:(cels|цельс)|fahrenh|фаренг)\w*")
_SQUARE = re.compile(r"(?:quadrat|square |sq |квадратн\w* |平方)(.+)|"
                     r"(.+) (?:carre|[cq]uadrad|quadrat|kwadrat|квадрат)\w*")
_CUBIC = re.compile(r"(?:kubik|cubic |кубическ\w* |立方)(.+)|(.+) (?:cub|szescien|кубич)\w*")
# Powers of ten, by language; the first line counts in every language.
_MULTIPLIERS = {
    "": "thousand:3 million:6 millions:6 mn:6 mio:6 mill:6 bn:9 mrd:9 milliard:9 milliarde:9 milliarden:9 "
        "millionen:6 trillion:12 lakh:5 crore:7 k:3 тыс:3 тысяч:3 тысячи:3 тысяча:3 млн:6 миллион:6 миллиона:6 "
        "миллионов:6 млрд:9 миллиард:9 миллиарда:9 миллиардов:9 "
        "十万:5 百万:6 千万:7 万亿:12 万:4 萬:4 亿:8 億:8 千:3 百:2 兆:12 만:4 억:8",
    "en": "hundred:2 thousands:3 billion:9 billions:9 trillions:12 tn:12 m:6 b:9 bln:9 mln:6",
    "de": "tausend:3 hundert:2 tsd:3 billion:12 billionen:12 bio:12 trillion:18 trillionen:18",
    "fr": "mille:3 cent:2 cents:2 milliards:9 billion:12 billions:12 md:9 mds:9 m:6 trillion:18",
    "es": "mil:3 cien:2 millón:6 millon:6 millones:6 billón:12 billones:12 m:6 cientos:2",
    "it": "mila:3 mille:3 milione:6 milioni:6 miliardo:9 miliardi:9 mln:6 mld:9",
    "pt": "mil:3 milhão:6 milhões:6 bilhão:9 bilhões:9 mi:6 bi:9 milhares:3",
    "nl": "duizend:3 miljoen:6 miljard:9 mln:6 mld:9", "tr": "bin:3 milyon:6 milyar:9 yüz:2",
    "pl": "tys:3 tysięcy:3 tysiące:3 mln:6 milion:6 miliony:6 milionów:6 mld:9 miliard:9 miliardy:9 miliardów:9",
    "sv": "tusen:3 miljon:6 miljoner:6 miljard:9 miljarder:9", "da": "tusind:3 millioner:6 milliarder:9",
    "uk": "тисяч:3 мільйон:6 мільйони:6 мільйонів:6 мільярд:9 мільярди:9 мільярдів:9",
    "cs": "tisíc:3 milion:6 miliony:6 milionů:6 miliarda:9 miliardy:9 miliard:9",
}
_ATOMS = {
    "en": "zero:0 one:1 two:2 three:3 four:4 five:5 six:6 seven:7 eight:8 nine:9 ten:10 eleven:11 twelve:12 "
          "thirteen:13 fourteen:14 fifteen:15 sixteen:16 seventeen:17 eighteen:18 nineteen:19 twenty:20 thirty:30 "
          "forty:40 fifty:50 sixty:60 seventy:70 eighty:80 ninety:90 hundred:100 thousand:1000 million:1000000 "
          "billion:1000000000 dozen:12 half:0.5 both:2 twice:2 couple:2 pair:2 "
          "first:1 third:3 fourth:4 fifth:5 sixth:6 seventh:7 eighth:8 ninth:9 tenth:10 twentieth:20 thirtieth:30 "
          "fortieth:40 fiftieth:50 sixtieth:60 hundredth:100 twenties:20 thirties:30 forties:40 fifties:50 sixties:60 "
          "seventies:70 eighties:80 nineties:90 noon:12 midnight:12",
    "de": "null:0 ein:1 eine:1 einen:1 einem:1 einer:1 eins:1 zwei:2 zwo:2 drei:3 vier:4 fünf:5 sechs:6 sieben:7 "
          "acht:8 neun:9 zehn:10 elf:11 zwölf:12 dreizehn:13 vierzehn:14 fünfzehn:15 sechzehn:16 siebzehn:17 "
          "achtzehn:18 neunzehn:19 zwanzig:20 dreißig:30 dreissig:30 vierzig:40 fünfzig:50 sechzig:60 siebzig:70 "
          "achtzig:80 neunzig:90 hundert:100 tausend:1000 million:1000000 millionen:1000000 milliarde:1000000000 "
          "milliarden:1000000000 dutzend:12 beide:2 beiden:2 paar:2 halb:0.5 halbe:0.5 halbes:0.5 zweimal:2 mittag:12 "
          "mitternacht:12 viertel:15",
    "fr": "zéro:0 un:1 une:1 deux:2 trois:3 quatre:4 cinq:5 six:6 sept:7 huit:8 neuf:9 dix:10 onze:11 douze:12 "
          "treize:13 quatorze:14 quinze:15 seize:16 vingt:20 vingts:20 trente:30 quarante:40 cinquante:50 soixante:60 "
          "septante:70 huitante:80 nonante:90 quatre-vingt:80 quatre-vingts:80 cent:100 cents:100 mille:1000 "
          "million:1000000 millions:1000000 milliard:1000000000 milliards:1000000000 douzaine:12 demi:0.5 demie:0.5 "
          "midi:12 minuit:12",
    "es": "cero:0 un:1 una:1 uno:1 dos:2 tres:3 cuatro:4 cinco:5 seis:6 siete:7 ocho:8 nueve:9 diez:10 once:11 doce:12 "
          "trece:13 catorce:14 quince:15 dieciséis:16 diecisiete:17 dieciocho:18 diecinueve:19 veinte:20 veintiún:21 "
          "veintiuno:21 veintiuna:21 veintidós:22 veintitrés:23 veinticuatro:24 veinticinco:25 veintiséis:26 "
          "veintisiete:27 veintiocho:28 veintinueve:29 treinta:30 cuarenta:40 cincuenta:50 sesenta:60 setenta:70 "
          "ochenta:80 noventa:90 cien:100 ciento:100 doscientos:200 doscientas:200 trescientos:300 trescientas:300 "
          "cuatrocientos:400 cuatrocientas:400 quinientos:500 quinientas:500 seiscientos:600 setecientos:700 "
          "ochocientos:800 novecientos:900 mil:1000 millón:1000000 millones:1000000 docena:12 medio:0.5 media:0.5 "
          "ambos:2 ambas:2 mediodía:12 medianoche:12",
}
_MONTHS = """
en January February March April May June July August September October November December
de Januar Februar März April Mai Juni Juli August September Oktober November Dezember
de Jänner Feber Mrz Apr Mai Jun Jul Aug Sept Okt Nov Dez
fr janvier février mars avril mai juin juillet août septembre octobre novembre décembre
es enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
it gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre
pt janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro
nl januari februari maart april mei juni juli augustus september oktober november december
ru января февраля марта апреля мая июня июля августа сентября октября ноября декабря
pl stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia
tr Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık
sv januari februari mars april maj juni juli augusti september oktober november december
"""
_NUMERALS = {numeral: value for value, numerals in enumerate(("〇零", "一壹", "二两兩", *"三四五六七八九"))
             for numeral in numerals}
_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_CHINESE_NUMBER = re.compile(f"[{''.join(_NUMERALS)}{''.join(_SCALES)}]+")
_ROMAN_NUMBER = re.compile(r"\b[IVX]{1,6}(?=\b|e\b|\.)")
_ROMAN = {"I": 1, "V": 5, "X": 10}
_IDENTIFIER = re.compile(r"(?<![^\W_])([A-Z]{1,3})-?(\d{1,6})(?![\d.,]\d)")
_DATED_WORD = re.compile(r"(?<=\d)(?:st|nd|rd|th|er|º|\.)? (?:de |of )?([^\W\d_]+)|\b([^\W\d_]{2,20})\.? (?=\d)")
_WORD = re.compile(r"[^\W\d_]+")
# Second words of German compounds with a number.
_SECOND_WORDS = "jähr|prozent|fach|meter|kilometer|minüt|stünd|mal|köpf|jahr|tag|euro|dollar|yen"
_JOINT = {"en": r"(?:[ -]| and | a )", "de": r"(?:und| (?=milli))?", "fr": r"(?:[ -]| et )", "es": r"(?: | y )"}


def _lines(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().replace("\n    ", " ").splitlines()]


def _folded(form: str) -> str:
    """Return a form without case and accents."""
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", form.lower())).replace("ł", "l")


def _unit_names() -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = {}

    def add(form: str, name: str) -> None:
        form = form.replace("_", " ").replace("-", " ")
        names.setdefault(form if len(form) < 3 else _folded(form), set()).add(name)

    prefixes = {forms[0][0]: [forms[0].lstrip("wxyz"), *forms[1:]] for forms in _lines(_PREFIXES)}
    for used, base, *forms in _lines(_SCALED_UNITS):
        is_symbol = True
        for form in (base, *forms):
            is_symbol = is_symbol and form != "|"
            if form == "|":
                continue
            add(form, base)
            for prefix, *others in map(prefixes.__getitem__, used):
                for other in (prefix, *others):
                    # A symbol takes a short prefix in its own script, a name a long one.
                    if (len(other) < 3 and other.isascii() | (other in "µμ") == form.isascii()) if is_symbol \
                            else len(other) > 2 or other >= "\u2e80":
                        add(other + form, prefix + base)
    for name, *forms in _lines(_UNITS):
        for form in (name, *forms):
            add(form, name)
    # A degree may be one of either scale, and a dollar that of any country. ¥ is the sign of two currencies.
    for form, units in names.items():
        units |= {"°C", "°F"} if "°" in units else {"A$", "C$", "HK$", "MX$", "NZ$"} if "$" in units and (
            form not in ("usd", "us$")) else set()
    return {form: frozenset(units) for form, units in names.items()}


_UNIT_NAMES = _unit_names()
NO_UNIT: frozenset[str] = frozenset()


@lru_cache(maxsize=100_000)
def unit(word: str) -> frozenset[str]:
    """Return the units that a word or sign may name; an empty set for other words."""
    if word in _UNIT_NAMES:
        return _UNIT_NAMES[word]
    if len(word) > 1 and word[-1] in "²³23" and (base := unit(word[:-1])):
        return frozenset(name + ("²" if word[-1] in "²2" else "³") for name in base)
    if len(word) < 3:
        return NO_UNIT
    lower = _folded(word).replace("-", " ")
    if lower in _UNIT_NAMES:
        return _UNIT_NAMES[lower]
    if degrees := _DEGREES.fullmatch(lower):
        return frozenset({"°C" if degrees[1] else "°F"})
    for pattern, power in ((_SQUARE, "²"), (_CUBIC, "³")):
        if (match := pattern.fullmatch(lower)) and (base := unit(match[1] or match[2])):
            return frozenset(name + power for name in base)
    stems = [lower[:-len(end)] for end in _ENDINGS if lower.endswith(end) and len(lower) - len(end) > 2]
    stems += [stem + vowel for stem in stems for vowel in "oa"]                 # giorni: giorn-o
    return next((_UNIT_NAMES[stem] for stem in stems if stem in _UNIT_NAMES), NO_UNIT)


@cache
def _multipliers(language: str) -> dict[str, tuple[int, ...]]:
    """Return the possible powers of ten for each word. An unknown language has the words of all languages."""
    languages = ["", language] if language else list(_MULTIPLIERS)
    found: dict[str, tuple[int, ...]] = {}
    for code in languages:
        for entry in _MULTIPLIERS.get(code, "").split():
            word, _, power = entry.partition(":")
            found[word] = (int(power),) if language else tuple({*found.get(word, ()), int(power)})
    return found


def multiplier(word: str, language: str) -> tuple[int, ...]:
    """Return the powers of ten that a word after a number may mean: (6,) for million; () for other words."""
    return _multipliers(language).get(word.lower(), ())


@cache
def _word_pattern(language: str) -> tuple[re.Pattern[str], re.Pattern[str], dict[str, float]] | None:
    if language not in _ATOMS:
        return None
    atoms = {word: float(value) for word, _, value in (entry.partition(":") for entry in _ATOMS[language].split())}
    atom = "|".join(sorted(map(re.escape, atoms), key=len, reverse=True))
    end = rf"(?:s|ern?|ste[nrs]?|te[nrs]?|ige?rn?|(?:{_SECOND_WORDS})\w*)?\b" if language == "de" else r"s?\b"
    return re.compile(rf"\b(?:{atom})(?:{_JOINT[language]}(?:{atom}))*{end}"), re.compile(atom), atoms


def has_months(language: str) -> bool:
    """Return True if `spelled_months` knows the months of a language."""
    return bool(_months(main_language(language)))


def has_number_words(language: str) -> bool:
    """Return True if `spelled_numbers` knows the number words of a language."""
    return main_language(language) in (*_ATOMS, "zh", "ja")


@cache
def _months(language: str) -> dict[str, int]:
    found = {}
    for line in _MONTHS.strip().splitlines():
        code, *names = line.split()
        if code == language or not language:
            for number, name in enumerate(names, start=1):
                found[name.lower()] = number
                found.setdefault(name.lower()[:3], number)
                found.setdefault(name.lower()[:4], number)
    return found


def spelled_numbers(text: str, language: str) -> Counter[str]:
    """Return the values of the number words, and of numerals such as 三十 and XIV, in a text."""
    language = main_language(language)
    found: Counter[str] = Counter()
    for numeral in _CHINESE_NUMBER.findall(text):
        found.update(_chinese_values(numeral))
    for roman in _ROMAN_NUMBER.findall(text):
        values = [_ROMAN[letter] for letter in roman]
        found[str(sum(-value if value < max(values[index:]) else value for index, value in enumerate(values)))] += 1
    if pattern := _word_pattern(language):
        whole, atom, values_of = pattern
        for match in whole.finditer(text.lower()):
            found.update(f"{value:.10g}" if value < 1e9 else str(int(value))
                         for value in _sums([values_of[word] for word in atom.findall(match[0])]))
    return found


def spelled_months(text: str, language: str) -> Counter[str]:
    """Return the numbers of the months that a text names."""
    months = _months(main_language(language))
    return Counter(str(months[word]) for word in _WORD.findall(text.lower()) if word in months)


def dated_months(text: str, language: str) -> dict[str, int]:
    """Return the months that stand beside a number in a text, by their names in lower case."""
    months = _months(main_language(language))
    if not months:
        return {}
    names = (before or after for before, after in _DATED_WORD.findall(text.lower()))
    return {name: months[name] for name in names if name in months}


def identifiers(text: str) -> dict[str, set[str]]:
    """Return the letters that stand with the digits of names such as A380 and B-52, by these digits; for "" the
    Roman numbers of at least two letters."""
    found: dict[str, set[str]] = {}
    for before, digits in _IDENTIFIER.findall(text):
        if len(digits) > 1 or before not in ("Q", "T", "H", "S"):               # quarters and halves of a year
            found.setdefault(digits, set()).add(before)
    if romans := {roman for roman in _ROMAN_NUMBER.findall(text) if len(roman) > 1}:
        found[""] = romans
    return found


def _sums(values: list[float]) -> list[float]:
    """Return the numbers that a sequence of values expresses: [25, 3000] for 5, 20, 3, 1000."""
    found, total, current = [], 0.0, 0.0
    for value in values:
        if value >= 1000:
            total, current = total + (current or 1) * value, 0.0
        elif value == 100:
            current = (current or 1) * 100
        elif not current or (value < 10 and not current % 10) or (value < 100 and not current % 100) or (
                current % 100 in (60, 80) and 10 <= value < 20) or (current % 100 < 10 and 20 <= value < 100):
            current += value
        else:
            found.append(total + current)
            total, current = 0.0, value
    found.append(total + current)
    return found + [first * 100 + second for first, second in pairwise(found) if 10 < first < 21 and 9 < second < 100]


def _chinese_values(numeral: str) -> list[str]:
    if not _SCALES.keys() & set(numeral):
        digits = "".join(str(_NUMERALS[one]) for one in numeral)
        return [digits.lstrip("0") or "0", *(digits if len(digits) == 2 else ())]         # 三四个: three or four
    total, section, digit = 0, 0, 0
    for character in numeral:
        if character in _NUMERALS:
            digit = _NUMERALS[character]
        elif (scale := _SCALES[character]) < 10**4:
            section, digit = section + (digit or 1) * scale, 0
        else:
            total, section, digit = (total + section + digit) * scale if total + section + digit else scale, 0, 0
    return [str(total + section + digit)]
