"""Codes and English names of languages, for model cards, packages and servers.

The codes are BCP 47 codes in the form that clients of LibreTranslate's interface expect: zh-Hans, pt-BR, nb.
"""

from seq2seq.languages import main_language, subtags

# Codes of LibreTranslate's interface, by the codes (in lower case) that other programs and recipes use.
_ALIASES = {"zh": "zh-Hans", "zh-cn": "zh-Hans", "zh-sg": "zh-Hans", "zh-my": "zh-Hans", "zt": "zh-Hant",
            "zh-tw": "zh-Hant", "zh-hk": "zh-Hant", "zh-mo": "zh-Hant", "pb": "pt-BR", "no": "nb", "iw": "he",
            "in": "id", "ji": "yi", "mo": "ro", "fil": "tl"}
# Code and English name of each language, with _ for spaces.
_LIST = """
af:Afrikaans am:Amharic an:Aragonese ar:Arabic as:Assamese ast:Asturian ay:Aymara az:Azerbaijani ba:Bashkir
be:Belarusian bg:Bulgarian bm:Bambara bn:Bengali bo:Tibetan br:Breton bs:Bosnian ca:Catalan ce:Chechen ceb:Cebuano
ckb:Central_Kurdish co:Corsican cs:Czech cv:Chuvash cy:Welsh da:Danish de:German dsb:Lower_Sorbian dv:Divehi
dz:Dzongkha ee:Ewe el:Greek en:English eo:Esperanto es:Spanish et:Estonian eu:Basque fa:Persian ff:Fulah fi:Finnish
fj:Fijian fo:Faroese fr:French fy:Western_Frisian ga:Irish gd:Scottish_Gaelic gl:Galician gn:Guarani gsw:Swiss_German
gu:Gujarati gv:Manx ha:Hausa haw:Hawaiian he:Hebrew hi:Hindi hr:Croatian hsb:Upper_Sorbian ht:Haitian_Creole
hu:Hungarian hy:Armenian ia:Interlingua id:Indonesian ie:Interlingue ig:Igbo io:Ido is:Icelandic it:Italian
iu:Inuktitut ja:Japanese jv:Javanese ka:Georgian kab:Kabyle kg:Kongo ki:Kikuyu kk:Kazakh kl:Kalaallisut km:Khmer
kn:Kannada ko:Korean kr:Kanuri ks:Kashmiri ku:Kurdish kv:Komi kw:Cornish ky:Kyrgyz la:Latin lb:Luxembourgish lg:Ganda
li:Limburgish lij:Ligurian ln:Lingala lo:Lao lt:Lithuanian lv:Latvian mai:Maithili mg:Malagasy mh:Marshallese mi:Maori
mk:Macedonian ml:Malayalam mn:Mongolian mr:Marathi ms:Malay mt:Maltese my:Burmese nb:Norwegian nds:Low_German
ne:Nepali nl:Dutch nn:Norwegian_Nynorsk nr:South_Ndebele nso:Northern_Sotho nv:Navajo ny:Chichewa oc:Occitan om:Oromo
or:Odia os:Ossetian pa:Punjabi pap:Papiamento pl:Polish ps:Pashto pt:Portuguese pt-BR:Portuguese_(Brazil) qu:Quechua
rm:Romansh rn:Rundi ro:Romanian ru:Russian rw:Kinyarwanda sa:Sanskrit sc:Sardinian scn:Sicilian sd:Sindhi
se:Northern_Sami sg:Sango sh:Serbo-Croatian si:Sinhala sk:Slovak sl:Slovenian sm:Samoan sn:Shona so:Somali sq:Albanian
sr:Serbian ss:Swati st:Southern_Sotho su:Sundanese sv:Swedish sw:Swahili szl:Silesian ta:Tamil te:Telugu tg:Tajik
th:Thai ti:Tigrinya tk:Turkmen tl:Tagalog tn:Tswana to:Tongan tr:Turkish ts:Tsonga tt:Tatar tw:Twi ty:Tahitian
ug:Uyghur uk:Ukrainian ur:Urdu uz:Uzbek ve:Venda vec:Venetian vi:Vietnamese wa:Walloon war:Waray wo:Wolof xh:Xhosa
yi:Yiddish yo:Yoruba yue:Cantonese za:Zhuang zh:Chinese zh-Hans:Chinese zh-Hant:Chinese_(traditional) zu:Zulu
"""
LANGUAGE_NAMES = dict(entry.split(":") for entry in _LIST.split())
"""Name of each language by its code, with _ for spaces."""


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


def language_name(code: str) -> str:
    """Return the English name of a language, with its script or region if the code has one; `code` if unknown."""
    if code in LANGUAGE_NAMES:
        return LANGUAGE_NAMES[code].replace("_", " ")
    main, _, rest = code.partition("-")
    return f"{language_name(main)} ({rest})" if rest and main in LANGUAGE_NAMES else code
