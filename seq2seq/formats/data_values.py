"""Strings that are data for programs, not text for people: addresses, codes, colours, patterns of dates and so on.

The form of a string tells that. Where words have this form, too, as `en` in French, the key of the string decides. What
may be text is translated.
"""

from __future__ import annotations

import re
from functools import lru_cache

from seq2seq.languages import LANGUAGES, canonical

_MAX_WORD = 60
"""Maximum length of an ASCII word that counts as text. Longer words are keys, hashes or encoded data."""
_MAX_PHRASE = 300
"""Maximum length of a string with white space that is compared with _PHRASES."""
# Codes of languages that are words, too, mostly short ones of the same or another language.
_WORDS_LIKE_CODES = """
af am an as av ay be bi bo ca ce co da el eo es et fa ha he hi hu id io is it ja kl la li lo me mi my na ne no oc om
or os sa se si so st su ta te th ti to tu uk un up ur us ve vi wa wo za
"""
_CODE_WORDS = frozenset(_WORDS_LIKE_CODES.split())
_LOCALE = re.compile(r"([a-z]{2,3})(?:[-_][A-Z][a-z]{3})?(?:[-_](?:[A-Za-z]{2}|\d{3}))?(?:[.@][\w-]+)?")
_NAME = re.compile(r"[\w$.:/-]++(?:\([^()\s]*+\);?)?", re.ASCII)

# Letters of date patterns of CLDR, Java, .NET, Moment and PHP, with the part of a date that they stand for.
_DATE_PARTS = {letter: part for part, letters in {
    "year": "yYu", "month": "ML", "day": "dDj", "weekday": "Eec", "hour": "hHkK", "minute": "mi", "second": "sS",
    "": "GQqwWFgabBJAzZOvVXxTtfnlNPUop"}.items() for letter in letters}
_DATE_RUN = r"([A-Za-z])\1{0,8}+"
_DATE_TOKEN = re.compile(r"(?:y{2,4}+|Y{2,4}+|M{2,4}+|d{2}|D{2}|H{2}|h{2}|m{2}|s{2}|S{2,9}+|T|Z|X)++(?![A-Za-z])"
                         rf"|Do(?![A-Za-z])|LTS?(?![A-Za-z])|{_DATE_RUN}(?![A-Za-z])|'[^'\n]*+'|\[[^\[\]\n]*+\]"
                         r"|[\s.,:;/|()·–—年月日時时分秒년월일시분초-]++")
_REPEATED = re.compile(r"([A-Za-z])\1")
_ONE_PART = re.compile(r"[yY]{4}|M{3,5}|E{3,5}|L{2,5}|d{3,4}|LTS?")

_LENGTH = r"-?[\d.]++(?:px|r?em|pt|v[hw]|vmin|vmax|fr|deg|ms|ch|%)"
_MODIFIER = (r"(?:Ctrl|Control|Primary|Alt|AltGr|Shift|Cmd|Command|Meta|Super|Option|Win|Fn|Mod|CmdOrCtrl"
             r"|CommandOrControl)")
_CRON_FIELD = r"(?:[\d*?LW][\d*/,?LW#-]*+|[A-Z]{3}(?:[-,][A-Z]{3})*+)"
# Forms of strings without white space. Each alternative takes linear time.
_WORDS = {
    "address": r"[a-zA-Z][a-zA-Z0-9+.-]*+:(?://\S++|\S*[/@.]\S*+)|www\.\S++|[^\s@]++@\S++",
    "locale": r"[a-z]{2,3}-[A-Z][A-Za-z]{1,3}(?:-[A-Z]{2})?|[a-z]{2,3}-\d{3}",
    "option": r"--[a-z][\w-]*+(?:=\S*+)?|-[a-zA-Z]",
    "dotted name, file or version": r"[\w$-]++(?:(?:\.|::)[\w$-]++)++|[v^~<>=]*+\d++(?:\.[\w*+-]++)*+|v\d++",
    "camelCase": r"(?:[a-z][a-z0-9]*+|[A-Z][a-z0-9]++)(?:[A-Z][a-z0-9]*+)++(?:\([^()\s]*+\);?)?",
    "shortcut": rf"(?:{_MODIFIER}\+|<{_MODIFIER}>|[⌘⌥⇧⌃]\+?)++\S{{1,12}}|(?:{_MODIFIER}-)++(?:\S|F\d{{1,2}})",
    "code": r"(?=[A-Z.-]*\d)[A-Z][A-Z\d]*+(?:[.-][A-Z\d]++)*+|utf-?(?:8|16|32)",
    "path": r"(?=\S*\.\w+\Z)[\w.-]++(?:/[\w.-]++)++|[.~]{0,2}/\S*+|[A-Za-z]:\\\S*+",
    "glob": r"(?=\S*(?:\*\.|/\*|\*\*/))[\w.*/{},@-]++",
    "time": r"\d{4}-\d\d-\d\dT[\d:.]++(?:Z|[+-]\d\d:?\d\d)?|P(?=[\dT])(?:\d++[YMWD])*+(?:T(?:\d++[HMS])++)?",
    "time zone": r"(?:Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)/"
                 r"(?!(?:Africa|America|Asia|Australia|Europe|Pacific)\Z)[A-Z][\w/+-]++",
    "literal": r"true|false|null",
    "MIME type": r"(?:application|audio|font|image|message|model|multipart|text|video)/(?:\*|\w*+[-.+\d][\w.+-]*+"
                 r"|json|xml|html|css|csv|plain|javascript|pdf|zip|gzip|png|jpe?g|gif|webp|avif|bmp|tiff|mpeg|ogg|webm"
                 r"|wav|woff|ttf|otf|markdown|rtf|yaml|calendar|wasm|graphql|msword|flac|aac)(?:;\S*+)?",
    "UUID": r"(?:urn:uuid:)?\{?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\}?",
    "colour or number": r"#[0-9a-fA-F]{3,8}|0[xX][0-9a-fA-F]++|(?=[a-fA-F]*+\d)[0-9a-fA-F]{8,}+",
    "physical address": r"(?=[^\d]*+\d)(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}",
    "length": _LENGTH,
    "unit": r"[kMGT]i?[Bb]|[kMG]Hz|[kM]Wh?|[mck]m[²³]?|m[²³]|[km]g|px|km/h|m/s",
    "icon": r"(?:fa[srlbd]?|mdi|glyphicon|icon|el-icon)-[a-z0-9-]++|(?:mdi|fa[a-z0-9-]*|bi|ic|tabler|lucide|heroicons"
            r"|carbon|ph|ri|ion|material-symbols|ant-design|octicon|logos|simple-icons):[a-z0-9-]++",
    "symbol": r":[a-z_]\w*+:?|@[:.]\S++",
    "encoded data": r"(?=[^\d]*+\d++[^\d]++\d)(?=[^A-Z]*+[A-Z])(?=[^a-z]*+[a-z])[A-Za-z0-9+/]{16,}+={0,2}"
                    r"|(?=[^\dA-Z+/]*+[\dA-Z+/])[A-Za-z0-9+/]{10,}+={1,2}",
    "regular expression": r"\^\S*+(?<=\$)|(?=[!-~]*(?:\\[dwsDWSbB](?![a-z]|[A-Z]{2})|\(\?[:=!<]"
                          r"|\[\^?\w{0,9}(?:a-z|A-Z|0-9|a-f)))[!-~]++",
}
_WORD = re.compile("|".join(f"(?:{pattern})" for pattern in _WORDS.values()), re.ASCII)
_UTILITY_NAMES = (r"[mp][xytrbl]?|[wh]|(?:min|max)-[wh]|text|bg|border|rounded|flex|grid|gap|font|items|justify|content"
                  r"|btn|col|row|shadow|z|inset|space-[xy]|leading|tracking|opacity|order|d|align|float|alert|badge")
_UTILITY_VALUES = (r"\d\S*+|\[\S++|x?[sml][mdl]?|xs|xl|auto|full|screen|none|center|left|right|start|end|between|around"
                   r"|evenly|bold|semibold|medium|light|normal|italic|wrap|nowrap|row|col|cols?-\d++|primary|secondary"
                   r"|success|danger|warning|info|dark|white|black|transparent|[a-z]++-\d{2,3}(?:/\d++)?")
_UTILITY = (r"(?:(?:sm|md|lg|xl|2xl|hover|focus|active|dark|first|last):)*+-?"
            rf"(?:(?:{_UTILITY_NAMES})-(?:{_UTILITY_VALUES})|(?:top|left|right|bottom)-\d++|form-(?:control|group)"
            r"|(?:card|nav|navbar)-(?:body|brand|link|item|header|footer))(?!\S)")
_CSS_NAME = (r"(?:color|width|height|display|opacity|float|overflow|cursor"
             r"|(?:background|margin|padding|border|font|flex|grid)(?:-[a-z]++)*+"
             r"|(?:text|line|z|min|max|white|list|box|align|justify|word|vertical)-[a-z]++)")
# Forms of strings that may have white space.
_PHRASES = {
    "declarations of CSS": rf"(?:[\w.#:>~+*, -]{{1,80}}+\{{\s*+)?(?:(?:{_CSS_NAME}:[^:;?{{}}]{{1,80}}+;\s*+)++"
                           rf"(?:{_CSS_NAME}:[^:;?{{}}]{{1,80}}+)?|{_CSS_NAME}:\s*+(?:#|-?[\d.]|(?:none|auto|bold)\b)"
                           r"[^:;?{}]{0,80}+)\}?",
    "fonts": r"(?:[\w' \"-]++,\s*+)++(?:sans-serif|serif|monospace|cursive|fantasy|system-ui)",
    "colour": r"(?:rgb|hsl|hwb|lab|lch|oklab|oklch)a?\([^()]*+\)",
    "function of CSS": r"(?:(?:translate|scale|rotate|skew)(?:3d|[XYZ])?|matrix|calc|var|url|min|max|clamp|steps"
                       r"|(?:repeating-)?(?:linear|radial|conic)-gradient|cubic-bezier)"
                       r"\([^()]*+(?:\([^()]*+\)[^()]*+)*+\)",
    "time of PHP": r"[gGhH]:i(?::s)?(?: ?[aA])?",
    "directives of printf and strftime": r"(?:%(?:\d\$)?[-+_^#0]?[\d.]*+(?:hh?|ll?|[qzj])?[A-Za-z@%]|[^\w%]|\d)++",
    "HTML entities": r"(?:&(?:[A-Za-z][A-Za-z0-9]*+|#x?[0-9A-Fa-f]++);|[\W\d_])++",
    "MIME type": r"(?:application|audio|font|image|multipart|text|video)/[\w.+*-]++(?:;\s*+[\w-]++=[^\s;]++)++",
    "lengths": rf"(?:(?:{_LENGTH}|0|auto)\s++)++(?:{_LENGTH}|0|auto)",
    "cron": rf"(?:[\d*][\d*/,-]*+\s++){{2,4}}{_CRON_FIELD}(?:\s++{_CRON_FIELD}){{1,2}}"
            r"|@(?:yearly|annually|monthly|weekly|daily|hourly|reboot)",
    "request": r"(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) /\S*",
    "date and zone": r"(?:\w{3}, )?\d{1,4}[ -]\w{2,3}[ -]\d{1,4}[ T]\d\d:\d\d(?::\d\d)?(?:\.\d++)? ?"
                     r"(?:GMT|UTC|Z|[+-]\d\d:?\d\d)",
    "icon": r"(?:fa[srlbd]?|fa-(?:solid|regular|brands|light)|glyphicon|mdi|bi|icon)"
            r"(?:\s++(?:fa|glyphicon|mdi|bi|icon)-[a-z0-9-]++)++",
    "classes of CSS": rf"(?=[^-]*-)(?:(?:{_UTILITY}|(?:flex|grid|hidden|block|inline|relative|absolute|fixed|sticky"
                      r"|container|row|btn|card|badge|alert|navbar|nav|border|rounded|shadow|truncate|italic|underline)"
                      r"(?!\S))(?:\s++|\Z))++(?<=[a-z0-9\])/])",
    "regular expression": r"\^.*(?<=\$)",
    "SQL": r"(?=[^a-z]*[a-z*])(?:SELECT\s.*\sFROM\s.*|INSERT INTO\s++[a-z]\w*+\s*+(?:\(|VALUES\b|SELECT\b).*"
           r"|UPDATE\s++[a-z]\w*+\s++SET\s.*|DELETE FROM\s++[a-z]\w*+(?:\s++WHERE\s.*)?;?"
           r"|(?:CREATE|ALTER|DROP) (?:TABLE|INDEX|VIEW)\s++(?:IF (?:NOT )?EXISTS\s++)?[a-z][\w.]*+"
           r"\s*+(?:[(;]|ADD\b|DROP\b|ON\b|\Z).*)",
}
_PHRASE = re.compile("|".join(f"(?:{pattern})" for pattern in _PHRASES.values()), re.DOTALL)
_SVG_PATH = re.compile(r"[Mm]\s*+-?\.?\d[\d\s,.eE+MmLlHhVvCcSsQqTtAaZz-]++")

_KEY_WORDS = re.compile(r"[A-Z]?[a-z]++|[A-Z]++(?![a-z])")
_COLOR_NAMES = """
aqua aquamarine azure beige black blue brown coral crimson cyan fuchsia gold gray green grey indigo ivory khaki
lavender lime magenta maroon navy olive orange orchid pink plum purple red salmon silver tan teal tomato transparent
turquoise violet white yellow inherit currentcolor
"""
_COLORS = frozenset(_COLOR_NAMES.split())

_KEPT = re.compile(
    r"(?i)\bdo(?:n't| not) translate(?: or \w++)?(?: (?:this|it))?(?: (?:text|string|message|entry))?\s*+(?:[].!(*]|$)"
    r"|\b(?:not |non-|un)translatable\s*+(?:[].!(*]|$)|\{Locked\}")
# As Microsoft writes it: https://learn.microsoft.com/en-us/windows/apps/design/globalizing/prepare-your-app-for-localization
_LOCKED_WORDS = re.compile(r"\{(?:Locked|Placeholder)=((?:\s*+(?:\"[^\"{}]++\"|'[^'{}]++'),?)++)\}")


def is_locked(comment: str) -> bool:
    """Return True if the comment of a developer asks to keep a text."""
    return _KEPT.search(comment) is not None


def locked_words(comment: str) -> list[str]:
    """Return the words of a text that the comment of a developer asks to keep, as in {Locked="Cloud Suite"}."""
    lists = [match[1] for match in _LOCKED_WORDS.finditer(comment)]
    return [word[1:-1] for words in lists for word in re.findall("\"[^\"]++\"|'[^']++'", words)]


@lru_cache(maxsize=64)                                                          # a text and its only line
def is_data(text: str, key: str = "") -> bool:
    """Return True if a string is data for programs.

    text: string. key: key of the string in its document.
    """
    has_margins, text = text != text.strip(), text.strip()
    if _is_data_of_key(text, key) or _is_date_pattern(text) or _SVG_PATH.fullmatch(text):
        return True
    if len(text) <= _MAX_PHRASE and _PHRASE.fullmatch(text):
        return True
    # A list of such words, as in "Ctrl+C, Ctrl+V", on one line or several.
    words = [word for word in re.split(r"[,;\s]++", text) if word] if len(text) <= _MAX_PHRASE else []
    if len(words) > 1 and all(any(map(str.isalpha, word)) and _is_data_word(word) for word in words):
        return True
    if any(map(str.isspace, text)):
        return False
    return _is_data_word(text) or _is_locale(text) and not has_margins


def _is_data_word(text: str) -> bool:
    # "C_redits" is a label with an access key.
    is_label = text.count("_") == 1 and text.replace("_", "").istitle()
    return len(text) > _MAX_WORD and text.isascii() or _WORD.fullmatch(text) is not None \
        or "_" in text and not is_label and _NAME.fullmatch(text) is not None


def _is_locale(text: str) -> bool:
    """Return True if a word is the code of a language or locale, and no word of any language."""
    match = _LOCALE.fullmatch(text)
    return match is not None and match[1] in LANGUAGES and match[1] not in _CODE_WORDS and (
        len(match[1]) == 2 or len(text) > 3)


def words_of_key(key: str) -> list[str]:
    """Return the words of a key in lower case, such as those of `shortDescription` and `short_description`."""
    return [word.lower() for word in _KEY_WORDS.findall(key)]


def _is_data_of_key(text: str, key: str) -> bool:
    """Return True if a string has a form that a word may have, too, but its key names the form."""
    words = set(words_of_key(key)) if key and len(text) <= _MAX_PHRASE else set()
    if words & {"lang", "language", "languages", "langs", "locale", "locales", "lng", "hreflang", "culture"}:
        match = _LOCALE.fullmatch(text)
        return match is not None and canonical(match[1]) in LANGUAGES
    if words & {"mnemonic", "accelerator", "accesskey", "hotkey", "shortcut"} or {"access", "key"} <= words:
        return len(text) == 1
    if words & {"currency", "country", "region"} and re.fullmatch("[A-Z]{2,3}", text):
        return True
    if words & {"color", "colour", "colors", "colours", "background", "fill", "stroke"}:
        return text in _COLORS
    if words & {"icon", "class", "classes"} or {"class", "name"} <= words:
        return text != key and re.fullmatch(r"[a-z][a-z0-9:/.\[\] -]*+", text) is not None and (
            "icon" in words and " " not in text or "-" in text)
    return False


def _is_date_pattern(text: str) -> bool:
    """Return True if a string is a pattern of a date or a time, such as `dd.MM.yyyy` or `F j, Y`."""
    if len(text) > _MAX_WORD:
        return False
    if _ONE_PART.fullmatch(text):
        return True
    shown = ""                                                                  # pattern without its literal texts
    parts: set[str] = set()
    position = 0
    while position < len(text):
        match = _DATE_TOKEN.match(text, position)
        if match is None:
            return False
        position = match.end()
        if match[0].startswith("LT"):                                           # time in the form of the locale
            parts |= {"hour", "minute"}
        elif match[0][0] not in "'[":
            shown += match[0]
    letters = {letter for letter in shown if letter.isalpha() and letter.isascii()}
    if not letters <= {*_DATE_PARTS}:
        return False
    parts |= {_DATE_PARTS[letter] for letter in letters}
    if not _REPEATED.search(shown) and "year" not in parts and not {"hour", "minute"} <= parts:
        return {"d", "M"} <= letters                                            # not E/S or S M T W T F S
    return len(parts - {""}) > 1
