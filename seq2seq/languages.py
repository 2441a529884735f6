"""Languages: codes and names, scripts, spacing, and the tokenisation of BLEU and TER.

Packages and servers use BCP 47 codes in the form that clients of LibreTranslate's interface expect: zh-Hans, pt-BR, nb.
A code names the script only if it is not the usual one of its language (by CLDR), except for Chinese.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache

_CODES = """
af am an ar as ast ay az ba be bg bm bn bo br bs ca ce ceb ckb co cs cv cy da de dsb dv dz ee el en eo es et eu fa ff
fi fj fo fr fy ga gd gl gn gsw gu gv ha haw he hi hr hsb ht hu hy ia id ie ig io is it iu ja jv ka kab kg ki kk kl km
kn ko kr ks ku kv kw ky la lb lg li lij ln lo lt lv mai mg mh mi mk ml mn mr ms mt my nb nds ne nl nn nr nso nv ny oc
om or os pa pap pl ps pt pt-BR qu rm rn ro ru rw sa sc scn sd se sg sh si sk sl sm sn so sq sr ss st su sv sw szl ta
te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vec vi wa war wo xh yi yo yue za zh zh-Hans zh-Hant zu
"""
LANGUAGES = dict.fromkeys(_CODES.split())
"""Codes of languages in a fixed order, ISO 639-1 if they have such a code, else ISO 639-3. A code in a document, such
as a key of YAML, names a language only if it is one of these."""
# Babel, which is loaded on first use because its data take 30 ms, has the names and codes of languages. These are names
# that it has in another form, and three-letter codes that it replaces by another language, or that stand for something
# else in names of files (`src`: the source).
_OWN_NAMES = {"bn": "Bengali", "ff": "Fulah", "mi": "Maori", "nb": "Norwegian", "ny": "Chichewa", "os": "Ossetian",
              "pt-BR": "Portuguese (Brazil)", "zh-Hans": "Chinese", "zh-Hant": "Chinese (traditional)"}
_OWN_CODES = {"bih": "bh", "cmn": "cmn", "hbs": "sh", "src": "src", "tgl": "tl", "twi": "tw"}

# ISO 639-3 codes of Chinese languages. In ISO 639-1, zh stands for all of them.
_CHINESE = {"cmn", "yue", "wuu", "lzh"}

# Other English names and some native names: lower case, one word each.
_OTHER_NAMES = """
dansk:da deutsch:de espanol:es español:es farsi:fa flemish:nl francais:fr français:fr frisian:fy gaelic:gd haitian:ht
italiano:it kirghiz:ky laotian:lo magyar:hu mandarin:zh moldovan:ro nederlands:nl nihongo:ja norsk:no norwegian:no
oriya:or polski:pl portugues:pt português:pt sinhalese:si slovene:sl sotho:st suomi:fi svenska:sv tonga:to
"""
# Codes of countries, and codes that do not exist, which are often written for a language; all are no language codes.
_COUNTRIES = {"al": "sq", "bd": "bn", "by": "be", "cn": "zh", "cz": "cs", "dk": "da", "gb": "en", "ge": "ka",
              "gr": "el", "il": "he", "ir": "fa", "jp": "ja", "kh": "km", "kz": "kk", "mx": "es", "np": "ne",
              "pk": "ur", "po": "pl", "rs": "sr", "sp": "es", "ua": "uk", "us": "en", "vn": "vi"}
# Codes of countries that are also codes of another language: Sweden, but also Northern Sami.
_COUNTRIES_AND_LANGUAGES = {"ba": "bs", "br": "pt", "ee": "et", "kr": "ko", "my": "ms", "se": "sv",
                            "si": "sl", "tw": "zh"}

# Codes of LibreTranslate's interface, by the codes (in lower case) that other programs and recipes use.
_ALIASES = {"zh": "zh-Hans", "zh-cn": "zh-Hans", "zh-sg": "zh-Hans", "zh-my": "zh-Hans", "zt": "zh-Hant",
            "zh-tw": "zh-Hant", "zh-hk": "zh-Hant", "zh-mo": "zh-Hant", "pb": "pt-BR", "no": "nb", "iw": "he",
            "ko-hang": "ko",
            "in": "id", "ji": "yi", "mo": "ro", "fil": "tl"}


@cache
def _two_letters() -> dict[str, str]:
    """Return the two-letter code of each language that has one, by its three-letter codes."""
    from babel.core import get_global

    aliases = {three: two for three, two in get_global("language_aliases").items() if (len(three), len(two)) == (3, 2)}
    return aliases | _OWN_CODES


@cache
def _names() -> dict[str, str]:
    """Return the English name of each language by its code."""
    from babel import Locale

    return {**Locale("en").languages, **_OWN_NAMES}


@cache
def _codes_by_name() -> dict[str, str]:
    """Return the two-letter code of a language by its name in lower case. Names that are three-letter codes, such as
    `ewe`, are left out."""
    names = {_names()[code].lower(): code for code in LANGUAGES if len(code) == 2}
    return {name: code for name, code in names.items() if name not in _two_letters()} | dict(
        entry.split(":") for entry in _OTHER_NAMES.split())


def subtags(code: str) -> list[str]:
    """Return the parts of a language code in lower case: language, script, region. A three-letter code of the language
    is replaced by its two-letter code if there is one.

    Examples: ["en", "us"] for eng-US, en_US and EN-us; ["de"] for de, deu and ger; ["gsw"] for gsw.
    """
    language, *others = code.lower().replace("_", "-").split("-")
    return [_two_letters().get(language, language) if len(language) == 3 else language, *others]


@lru_cache(maxsize=1024)
def main_language(code: str) -> str:
    """Return the code of a language without script and region: de for de-AT; zh for zh-CN, zho_Hans and cmn."""
    main = subtags(code)[0]
    return "zh" if main in _CHINESE else main


def same_code(code: str, other: str) -> bool:
    """Return True if both codes have the same language, script and region."""
    return subtags(code) == subtags(other)


def code_for(name: str) -> str | None:
    """Return the code of a language that is given by its name or a country code: ja for `japanese` and `jp`.

    Returns None for language codes, and for unknown names.
    """
    main = name.strip().lower().replace("_", "-").partition("-")[0]
    return _codes_by_name().get(main) or _COUNTRIES.get(main)


def is_language(code: str) -> bool:
    """Return True for the code of a language, in any form, and for a name or a country code that `code_for` knows."""
    return main_language(canonical(code)) in _names() or code_for(code) is not None


def suggestion_for(name: str) -> str:
    """Return a sentence with the code of a language that is given by its name or a country code; else ""."""
    return f" The code of {language_name(code)} is {code}." if (code := code_for(name)) else ""


def country_language(code: str) -> str | None:
    """Return the language that may be meant by a valid code, if it is also that of a country: sv for `se`, the code of
    Northern Sami and Sweden. None for other codes."""
    return _COUNTRIES_AND_LANGUAGES.get(code.lower())


def canonical(code: str) -> str:
    """Return the code under which packages and servers name a language: zh-Hans for zh, zho_Hans and zh-CN; pt-BR for
    pb; de for deu and deu_Latn. The language is in lower case, the script in title case, the region in upper case."""
    parts = subtags(code)
    if parts[0] != "yue":
        parts[0] = main_language(parts[0])
    parts = [parts[0], *(part for part in parts[1:] if part != "xx")]           # no region, in codes of mBART-50
    if alias := _ALIASES.get("-".join(parts)) or _ALIASES.get(parts[0] if len(parts) == 1 else ""):
        return alias
    parts[0] = _ALIASES.get(parts[0], parts[0]) if parts[0] not in ("zh", "pb", "zt") else parts[0]
    if len(parts) > 2 and parts[0] == "zh":
        parts = parts[:2]
    if parts[1:2] == [_usual_script(parts[0])] and parts[0] != "zh":
        del parts[1]
    return "-".join([parts[0], *(part.title() if len(part) == 4 else part.upper() for part in parts[1:])])


def resolve(code: str, known: Iterable[str]) -> str | None:
    """Return the language of `known`, which are canonical codes, that matches a code; None if no language matches.

    If the code has no region, a language with any region matches: `en-US` for `en`. If the region of the code is not
    known, the region is ignored: `de` for `de-AT`. Codes with different scripts never match. A known code without a
    script has the usual one.
    """
    languages = list(known)
    wanted = canonical(code)
    if wanted in languages:
        return wanted
    main, script = wanted.split("-")[0], _script(wanted) or _script(code)
    for one in sorted(languages, key=len):
        if one.split("-")[0] == main and (not script or (_script(one) or _usual_script(main)) in (script, "")):
            return one
    return None


def is_same_language(code: str, other: str) -> bool:
    """Return True if two codes name one language, whose regions may differ, and no different scripts."""
    first, second = canonical(code), canonical(other)
    scripts = {_script(first) or _script(code), _script(second) or _script(other)}
    return first.split("-")[0] == second.split("-")[0] and ("" in scripts or len(scripts) == 1)


def _script(code: str) -> str:
    return next((part for part in subtags(code)[1:] if len(part) == 4), "")


@cache
def _usual_script(language: str) -> str:
    """Return the script, in lower case, in which a language is usually written; "" if it is not known."""
    from babel.core import get_global

    return next((part.lower() for part in get_global("likely_subtags").get(language, "").split("_")[1:2]), "")


def language_name(code: str) -> str:
    """Return the English name of a language, with its script or region if the code has one; `code` if unknown."""
    main, _, rest = code.partition("-")
    if code in _names() or main not in _names():
        return _names().get(code, code)
    return f"{_names()[main]} ({rest})"


# Spacing and evaluation

_SENTENCES_WITHOUT_SPACES = {"zh", "ja"}
_WORDS_WITHOUT_SPACES = _SENTENCES_WITHOUT_SPACES | {
    "th", "lo", "km", "my", "bo", "dz", "gan", "hak", "hsn", "nan", "cdo", "cjy", "shn", "mnw", "nod", "tts", "khb",
    "tdd", "khg", "adx", "lbj", "sip"}
# Scripts (ISO 15924, in lower case) in which any language is written without spaces between words.
_SPACELESS_SCRIPTS = {"hans", "hant", "hani", "jpan", "hira", "kana", "thai", "laoo", "khmr", "mymr", "tibt", "lana",
                      "java", "bali"}


def has_spaceless_words(language: str) -> bool:
    """Return True if a language is written without spaces between words. If the code names a script, the script
    decides: Chinese in Latin letters (zh-Latn) has spaces, Pali in Thai letters (pi-Thai) has none."""
    script = _script(language)
    return script in _SPACELESS_SCRIPTS if script else main_language(language) in _WORDS_WITHOUT_SPACES


def has_spaceless_sentences(language: str) -> bool:
    """Return True if a language is written without spaces between sentences. In Thai, only a space separates them."""
    return main_language(language) in _SENTENCES_WITHOUT_SPACES and has_spaceless_words(language)


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacreBLEU's tokeniser for this language: 13a for languages with spaces between words, special
    ones for Chinese, Japanese and Korean, and `char` for other languages without spaces between words."""
    special = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
    special_one = special.get(main_language(language))
    if special_one and "latn" not in subtags(language):
        return special_one
    return "char" if has_spaceless_words(language) else "13a"


def ter_tokenizer(language: str) -> str:
    """Return the name of the tokeniser of TER for this language: `asian`, TERCOM's own division into characters, for
    Chinese; `char` for other languages without spaces between words, because `asian` would take a sequence of kana for
    a word; else `tercom`."""
    if bleu_tokenizer(language) == "zh":
        return "asian"
    return "char" if has_spaceless_words(language) else "tercom"


# Scripts

SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words, for a character class of a regular expression: Thai, Lao, Burmese, Khmer, kana
and Han."""
SPACELESS_CHARACTER = re.compile(f"[{SPACELESS}\u0f00-\u0fff]")
"""Character of SPACELESS or of Tibetan, which has no spaces between words, either. In Tibetan, the units of a text are
not letters but syllables, because a TSHEG ends each syllable."""
TSHEG = "\u0f0b\u0f0c"


@cache
def spaceless_cluster() -> str:
    """Return a regular expression of a character of SPACELESS with the characters that are written around it.

    These are combining marks, the letters that a virama stacks in Khmer and Burmese (ឆ្កែ), the vowels of Thai and Lao
    that precede their consonant (เด็ก), and their vowel am (น้ำ). A line break or a tag must not divide a cluster.
    """
    return (f"[\u0e40-\u0e44\u0ec0-\u0ec4]*[{SPACELESS}]"
            f"(?:[{combining_marks()}\u0e33\u0eb3]|(?<=[\u1039\u17d2])[{SPACELESS}])*")


@cache
def combining_marks() -> str:
    """Return the characters of `belongs_to_letter`, for a character class of a regular expression."""
    return "".join(filter(belongs_to_letter, map(chr, range(0x300, 0x20000))))


def belongs_to_letter(character: str) -> bool:
    """Return True if the character belongs to the letter before it.

    These characters are combining marks, for example the vowel signs of Hindi, and the zero-width joiner and
    non-joiner, which occur in Persian words. For Python's `\\w`, they are not part of a word.
    """
    return not character.isascii() and (character in "\u200c\u200d" or unicodedata.category(character)[0] == "M")


# Languages by script. A letter's script is the first word of its Unicode name. All other languages use LATIN.
_SCRIPTS = {
    "CYRILLIC": "ab ba be bg ce cv kk kv ky mk mn os ru sr tg tt uk", "ARABIC": "ar ckb fa ps sd ug ur",
    "CJK": "zh ja yue", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "GREEK": "el", "HEBREW": "he yi",
    "DEVANAGARI": "hi mai mr ne sa", "BENGALI": "as bn", "GURMUKHI": "pa", "GUJARATI": "gu", "ORIYA": "or",
    "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn", "MALAYALAM": "ml", "SINHALA": "si", "THAI": "th", "LAO": "lo",
    "TIBETAN": "bo dz", "MYANMAR": "my", "GEORGIAN": "ka", "ARMENIAN": "hy", "ETHIOPIC": "am ti", "KHMER": "km",
}
_FROM_RIGHT = frozenset(f"{_SCRIPTS['ARABIC']} {_SCRIPTS['HEBREW']} dv ks".split())
_OTHER_THAN_LATIN = frozenset(" ".join(_SCRIPTS.values()).split())
# Frequent characters that differ between simplified and traditional Chinese.
_SIMPLIFIED = re.compile("[们这个国来时说对会为么过还发学后开样没经从现电长关无间"
                         "问东车见书马儿门万与业两严丰临义习乡买乱争云亚产亲亿仅]")
_TRADITIONAL = re.compile("[們這個國來時說對會為麼過還發學後開樣沒經從現電長關無間"
                          "問東車見書馬兒門萬與業兩嚴豐臨義習鄉買亂爭雲亞產親億僅]")


def is_right_to_left(language: str) -> bool:
    """Return True if a language is written from right to left."""
    script = _script(language)
    return script in ("arab", "hebr", "syrc", "thaa") if script else main_language(language) in _FROM_RIGHT


def script_shares(text: str, languages: Iterable[str]) -> dict[str, float]:
    """Return, for each language, the share of the text's letters that belong to a script of this language."""
    counts: Counter[str] = Counter(unicodedata.name(character, "").partition(" ")[0]
                                   for character in text if character.isalpha())
    shares = {}
    for code in languages:
        main = main_language(code)
        letters = sum(count for script, count in counts.items() if main in _SCRIPTS.get(script, "").split()
                      or script == "LATIN" and main not in _OTHER_THAN_LATIN)
        # Japanese text contains kana besides kanji. For text without kana, Chinese is more probable.
        kanji_alone = main == "ja" and not (counts["HIRAGANA"] or counts["KATAKANA"])
        shares[code] = letters / max(1, counts.total()) * (0.5 if kanji_alone else 1)
    return shares


def is_traditional_chinese(text: str) -> bool:
    """Return True if Chinese text has more traditional than simplified characters."""
    return len(_TRADITIONAL.findall(text)) > len(_SIMPLIFIED.findall(text))
