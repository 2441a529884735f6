"""Languages: codes and names, scripts, spacing, and the tokenisation of BLEU and TER.

Packages and servers use BCP 47 codes in the form that clients of LibreTranslate's interface expect: zh-Hans, pt-BR, nb.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache

# Codes and English name of each language, separated by colons: the code, which is ISO 639-1 if there is one, then ISO
# 639-2/T (also 639-3), then ISO 639-2/B if it differs. The name, with _ for spaces, is missing for some rare languages.
_LANGUAGES = """
aa:aar ab:abk ae:ave af:afr:Afrikaans ak:aka am:amh:Amharic an:arg:Aragonese ar:ara:Arabic as:asm:Assamese ast:Asturian
av:ava ay:aym:Aymara az:aze:Azerbaijani ba:bak:Bashkir be:bel:Belarusian bg:bul:Bulgarian bh:bih bi:bis bm:bam:Bambara
bn:ben:Bengali bo:bod:tib:Tibetan br:bre:Breton bs:bos:Bosnian ca:cat:Catalan ce:che:Chechen ceb:Cebuano ch:cha
ckb:Central_Kurdish co:cos:Corsican cr:cre cs:ces:cze:Czech cu:chu cv:chv:Chuvash cy:cym:wel:Welsh da:dan:Danish
de:deu:ger:German dsb:Lower_Sorbian dv:div:Divehi dz:dzo:Dzongkha ee:ewe:Ewe el:ell:gre:Greek en:eng:English
eo:epo:Esperanto es:spa:Spanish et:est:Estonian eu:eus:baq:Basque fa:fas:per:Persian ff:ful:Fulah fi:fin:Finnish
fj:fij:Fijian fo:fao:Faroese fr:fra:fre:French fy:fry:Western_Frisian ga:gle:Irish gd:gla:Scottish_Gaelic
gl:glg:Galician gn:grn:Guarani gsw:Swiss_German gu:guj:Gujarati gv:glv:Manx ha:hau:Hausa haw:Hawaiian he:heb:Hebrew
hi:hin:Hindi ho:hmo hr:hrv:Croatian hsb:Upper_Sorbian ht:hat:Haitian_Creole hu:hun:Hungarian hy:hye:arm:Armenian hz:her
ia:ina:Interlingua id:ind:Indonesian ie:ile:Interlingue ig:ibo:Igbo ii:iii ik:ipk io:ido:Ido is:isl:ice:Icelandic
it:ita:Italian iu:iku:Inuktitut ja:jpn:Japanese jv:jav:Javanese ka:kat:geo:Georgian kab:Kabyle kg:kon:Kongo
ki:kik:Kikuyu kj:kua kk:kaz:Kazakh kl:kal:Kalaallisut km:khm:Khmer kn:kan:Kannada ko:kor:Korean kr:kau:Kanuri
ks:kas:Kashmiri ku:kur:Kurdish kv:kom:Komi kw:cor:Cornish ky:kir:Kyrgyz la:lat:Latin lb:ltz:Luxembourgish lg:lug:Ganda
li:lim:Limburgish lij:Ligurian ln:lin:Lingala lo:lao:Lao lt:lit:Lithuanian lu:lub lv:lav:Latvian mai:Maithili
mg:mlg:Malagasy mh:mah:Marshallese mi:mri:mao:Maori mk:mkd:mac:Macedonian ml:mal:Malayalam mn:mon:Mongolian
mr:mar:Marathi ms:msa:may:Malay mt:mlt:Maltese my:mya:bur:Burmese na:nau nb:nob:Norwegian nd:nde nds:Low_German
ne:nep:Nepali ng:ndo nl:nld:dut:Dutch nn:nno:Norwegian_Nynorsk no:nor nr:nbl:South_Ndebele nso:Northern_Sotho
nv:nav:Navajo ny:nya:Chichewa oc:oci:Occitan oj:oji om:orm:Oromo or:ori:Odia os:oss:Ossetian pa:pan:Punjabi
pap:Papiamento pi:pli pl:pol:Polish ps:pus:Pashto pt:por:Portuguese pt-BR:Portuguese_(Brazil) qu:que:Quechua
rm:roh:Romansh rn:run:Rundi ro:ron:rum:Romanian ru:rus:Russian rw:kin:Kinyarwanda sa:san:Sanskrit sc:srd:Sardinian
scn:Sicilian sd:snd:Sindhi se:sme:Northern_Sami sg:sag:Sango sh:hbs:Serbo-Croatian si:sin:Sinhala sk:slk:slo:Slovak
sl:slv:Slovenian sm:smo:Samoan sn:sna:Shona so:som:Somali sq:sqi:alb:Albanian sr:srp:Serbian ss:ssw:Swati
st:sot:Southern_Sotho su:sun:Sundanese sv:swe:Swedish sw:swa:Swahili szl:Silesian ta:tam:Tamil te:tel:Telugu
tg:tgk:Tajik th:tha:Thai ti:tir:Tigrinya tk:tuk:Turkmen tl:tgl:Tagalog tn:tsn:Tswana to:ton:Tongan tr:tur:Turkish
ts:tso:Tsonga tt:tat:Tatar tw:twi:Twi ty:tah:Tahitian ug:uig:Uyghur uk:ukr:Ukrainian ur:urd:Urdu uz:uzb:Uzbek
ve:ven:Venda vec:Venetian vi:vie:Vietnamese vo:vol wa:wln:Walloon war:Waray wo:wol:Wolof xh:xho:Xhosa yi:yid:Yiddish
yo:yor:Yoruba yue:Cantonese za:zha:Zhuang zh:zho:chi:Chinese zh-Hans:Chinese zh-Hant:Chinese_(traditional) zu:zul:Zulu
"""
_ENTRIES = [entry.split(":") for entry in _LANGUAGES.split()]
_TWO_LETTERS = {three: two for two, *others in _ENTRIES for three in others if three.islower()}

LANGUAGE_NAMES = {code: others[-1].replace("_", " ") for code, *others in _ENTRIES if others[-1][0].isupper()}
"""English name of each language by its code."""

# ISO 639-3 codes of Chinese languages. In ISO 639-1, zh stands for all of them.
_CHINESE = {"cmn", "yue", "wuu", "lzh"}

# Other English names and some native names: lower case, one word each.
_OTHER_NAMES = """
dansk:da deutsch:de espanol:es español:es farsi:fa flemish:nl francais:fr français:fr frisian:fy gaelic:gd haitian:ht
italiano:it kirghiz:ky laotian:lo magyar:hu mandarin:zh moldovan:ro nederlands:nl nihongo:ja norsk:no norwegian:no
oriya:or polski:pl portugues:pt português:pt sinhalese:si slovene:sl sotho:st suomi:fi svenska:sv tonga:to
"""
# Names that are three-letter codes, such as `ewe`, are left out.
_CODES = {name.lower(): code for code, name in LANGUAGE_NAMES.items()
          if len(code) == 2 and name.lower() not in _TWO_LETTERS}
_CODES |= dict(entry.split(":") for entry in _OTHER_NAMES.split())
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
            "in": "id", "ji": "yi", "mo": "ro", "fil": "tl"}


def subtags(code: str) -> list[str]:
    """Return the parts of a language code in lower case: language, script, region. A three-letter code of the language
    is replaced by its two-letter code if there is one.

    Examples: ["en", "us"] for eng-US, en_US and EN-us; ["de"] for de, deu and ger; ["gsw"] for gsw.
    """
    language, *others = code.lower().replace("_", "-").split("-")
    return [_TWO_LETTERS.get(language, language), *others]


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
    return _CODES.get(main) or _COUNTRIES.get(main)


def suggestion_for(name: str) -> str:
    """Return a sentence with the code of a language that is given by its name or a country code; else ""."""
    return f" The code of {language_name(code)} is {code}." if (code := code_for(name)) else ""


def country_language(code: str) -> str | None:
    """Return the language that may be meant by a valid code, if it is also that of a country: sv for `se`, the code of
    Northern Sami and Sweden. None for other codes."""
    return _COUNTRIES_AND_LANGUAGES.get(code.lower())


def canonical(code: str) -> str:
    """Return the code under which packages and servers name a language: zh-Hans for zh, zho_Hans and zh-CN; pt-BR for
    pb; de for deu. The language is in lower case, the script in title case, the region in upper case."""
    parts = subtags(code)
    if parts[0] != "yue":
        parts[0] = main_language(parts[0])
    if alias := _ALIASES.get("-".join(parts)) or _ALIASES.get(parts[0] if len(parts) == 1 else ""):
        return alias
    parts[0] = _ALIASES.get(parts[0], parts[0]) if parts[0] not in ("zh", "pb", "zt") else parts[0]
    if len(parts) > 2 and parts[0] == "zh":
        parts = parts[:2]
    return "-".join([parts[0], *(part.title() if len(part) == 4 else part.upper() for part in parts[1:])])


def resolve(code: str, known: Iterable[str]) -> str | None:
    """Return the language of `known`, which are canonical codes, that matches a code; None if no language matches.

    If the code has no region, a language with any region matches: `en-US` for `en`. If the region of the code is not
    known, the region is ignored: `de` for `de-AT`. Codes with different scripts never match.
    """
    languages = list(known)
    wanted = canonical(code)
    if wanted in languages:
        return wanted
    main = wanted.split("-")[0]
    same = [language for language in sorted(languages, key=len) if language.split("-")[0] == main]
    return next((one for one in same if "" in (_script(one), _script(wanted)) or _script(one) == _script(wanted)), None)


def is_same_language(code: str, other: str) -> bool:
    """Return True if two codes name one language in one script (see `resolve`). Their regions may differ."""
    return resolve(code, [canonical(other)]) is not None


def _script(code: str) -> str:
    return next((part for part in subtags(code)[1:] if len(part) == 4), "")


def language_name(code: str) -> str:
    """Return the English name of a language, with its script or region if the code has one; `code` if unknown."""
    if code in LANGUAGE_NAMES:
        return LANGUAGE_NAMES[code]
    main, _, rest = code.partition("-")
    return f"{language_name(main)} ({rest})" if rest and main in LANGUAGE_NAMES else code


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
_OTHER_THAN_LATIN = frozenset(" ".join(_SCRIPTS.values()).split())
# Frequent characters that differ between simplified and traditional Chinese.
_SIMPLIFIED = re.compile("[们这个国来时说对会为么过还发学后开样没经从现电长关无间"
                         "问东车见书马儿门万与业两严丰临义习乡买乱争云亚产亲亿仅]")
_TRADITIONAL = re.compile("[們這個國來時說對會為麼過還發學後開樣沒經從現電長關無間"
                          "問東車見書馬兒門萬與業兩嚴豐臨義習鄉買亂爭雲亞產親億僅]")


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
