"""Languages: normalisation of their codes, of which ISO 639 has up to three per language, and their names.

Packages and servers use BCP 47 codes in the form that clients of LibreTranslate's interface expect: zh-Hans, pt-BR, nb.
"""

from __future__ import annotations

# Codes of each language, separated by colons: ISO 639-1, then ISO 639-2/T (also 639-3), then ISO 639-2/B if it differs.
_ISO_639 = """
aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak be:bel bg:bul bh:bih
bi:bis bm:bam bn:ben bo:bod:tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre cs:ces:cze cu:chu cv:chv cy:cym:wel
da:dan de:deu:ger dv:div dz:dzo ee:ewe el:ell:gre en:eng eo:epo es:spa et:est eu:eus:baq fa:fas:per ff:ful fi:fin
fj:fij fo:fao fr:fra:fre fy:fry ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv ht:hat
hu:hun hy:hye:arm hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido is:isl:ice it:ita iu:iku ja:jpn jv:jav
ka:kat:geo kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat
lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub lv:lav mg:mlg mh:mah mi:mri:mao mk:mkd:mac ml:mal mn:mon mr:mar
ms:msa:may mt:mlt my:mya:bur na:nau nb:nob nd:nde ne:nep ng:ndo nl:nld:dut nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci
oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol ps:pus pt:por qu:que rm:roh rn:run ro:ron:rum ru:rus rw:kin sa:san
sc:srd sd:snd se:sme sg:sag sh:hbs si:sin sk:slk:slo sl:slv sm:smo sn:sna so:som sq:sqi:alb sr:srp ss:ssw st:sot
su:sun sv:swe sw:swa ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi
ty:tah ug:uig uk:ukr ur:urd uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid yo:yor za:zha zh:zho:chi zu:zul
"""
_TWO_LETTERS = {three: two for two, *others in (entry.split(":") for entry in _ISO_639.split()) for three in others}

# ISO 639-3 codes of Chinese languages. In ISO 639-1, zh stands for all of them.
_CHINESE = {"cmn", "yue", "wuu", "lzh"}

# English names of languages with a two-letter code, and some native names: lower case, one word each.
_NAMES = """
afrikaans:af albanian:sq amharic:am arabic:ar armenian:hy assamese:as aymara:ay azerbaijani:az bambara:bm bashkir:ba
basque:eu belarusian:be bengali:bn bosnian:bs breton:br bulgarian:bg burmese:my catalan:ca chechen:ce chichewa:ny
chinese:zh chuvash:cv cornish:kw corsican:co croatian:hr czech:cs danish:da dansk:da deutsch:de divehi:dv dutch:nl
dzongkha:dz english:en espanol:es español:es esperanto:eo estonian:et faroese:fo farsi:fa fijian:fj finnish:fi
flemish:nl francais:fr français:fr french:fr frisian:fy fulah:ff gaelic:gd galician:gl georgian:ka german:de greek:el
guarani:gn gujarati:gu haitian:ht hausa:ha hebrew:he hindi:hi hungarian:hu icelandic:is igbo:ig indonesian:id
inuktitut:iu irish:ga italian:it italiano:it japanese:ja javanese:jv kannada:kn kashmiri:ks kazakh:kk khmer:km
kikuyu:ki kinyarwanda:rw kirghiz:ky kongo:kg korean:ko kurdish:ku kyrgyz:ky laotian:lo latin:la latvian:lv lingala:ln
lithuanian:lt luxembourgish:lb macedonian:mk magyar:hu malagasy:mg malay:ms malayalam:ml maltese:mt mandarin:zh
maori:mi marathi:mr moldovan:ro mongolian:mn nederlands:nl nepali:ne nihongo:ja norsk:no norwegian:no occitan:oc
odia:or oriya:or oromo:om ossetian:os pashto:ps persian:fa polish:pl polski:pl portugues:pt portuguese:pt português:pt
punjabi:pa quechua:qu romanian:ro romansh:rm rundi:rn russian:ru samoan:sm sango:sg sanskrit:sa sardinian:sc
serbian:sr shona:sn sindhi:sd sinhala:si sinhalese:si slovak:sk slovene:sl slovenian:sl somali:so sotho:st spanish:es
sundanese:su suomi:fi svenska:sv swahili:sw swati:ss swedish:sv tagalog:tl tahitian:ty tajik:tg tamil:ta tatar:tt
telugu:te thai:th tibetan:bo tigrinya:ti tonga:to tsonga:ts tswana:tn turkish:tr turkmen:tk ukrainian:uk urdu:ur
uyghur:ug uzbek:uz venda:ve vietnamese:vi walloon:wa welsh:cy wolof:wo xhosa:xh yiddish:yi yoruba:yo zulu:zu
"""
_CODES = dict(entry.split(":") for entry in _NAMES.split())
# Country codes that are not language codes in ISO 639-1, with the language that is probably meant. Country codes that
# are also language codes, such as `se` (Sweden, but also Northern Sami) or `kr` (Korea, but also Kanuri), are left out.
_COUNTRIES = {"by": "be", "cn": "zh", "cz": "cs", "dk": "da", "gb": "en", "gr": "el", "il": "he", "ir": "fa",
              "jp": "ja", "kz": "kk", "rs": "sr", "ua": "uk", "us": "en", "vn": "vi"}

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


def subtags(code: str) -> list[str]:
    """Return the parts of a language code in lower case: language, script, region. A three-letter code of the language
    is replaced by its two-letter code if there is one.

    Examples: ["en", "us"] for eng-US, en_US and EN-us; ["de"] for de, deu and ger; ["gsw"] for gsw.
    """
    language, *others = code.lower().replace("_", "-").split("-")
    return [_TWO_LETTERS.get(language, language), *others]


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
