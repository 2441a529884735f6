"""Strings that are data for programs, and strings of a similar form that are text for people."""

import json

import pytest
from unchanged_documents import texts

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.data_values import is_data
from seq2seq.formats.json_strings import JsonDocument
from seq2seq.formats.properties import PropertiesDocument
from seq2seq.formats.registry import parse
from seq2seq.formats.texts import is_text
from seq2seq.formats.yaml_strings import YamlDocument


def is_message(text, key=""):
    """Return True if a string is translated."""
    return is_text(text) and not is_data(text, key)


# Kind: data of this kind, and similar texts, separated by |.
STRINGS = {
    "nothing": ("|12 %|\ud800 a|...|2020-01-01", "A|a|x|OK!"),
    "addresses": (
        "https://a.org/b|http://localhost:80|mailto:a@b.org|a@b.org|www.a.org|data:image/png;base64,AAAA",
        "see https://a.org|Note: this|Note:this"),
    "names": (
        "camelCase|DejaVuSans|a.b.c|MAX_SIZE|snake_case|true|null|a_b()|std::string|--help|--out=FILE|-v",
        "-a b|Sign-in|A-Team|T-shirt|OK|SQL|PDF|no.|Größe.Ä"),
    "files and paths": (
        "/usr/bin|./a|../a/b|fonts/a/b.ttf|logo.png|README.md|C:\\x\\y|src/**/*.ts|*.json|dist/*.min.js",
        "A/B test|Yes/No|and/or|24/7 support|file_name is wrong|n/a*|MODULE***|支持iOS16.4以上"),
    "versions": ("v1.2.3|v2|1.2.3-beta|^1.2.3|~2.0|>=3.8.0-rc1|2.x", "Version 2|v. Chr.|C++|C#|Day 1|2nd"),
    "languages": (
        "en|de|fr|zh|en_US|de-AT|zh-Hans|zh-Hans-CN|pt-BR|en-us|pt-br|es-419|sr-Latn|sr_Latn_RS|zh_Hant",
        "no|is|so|or|it|in|to|as|he|my|hi|id|ja|am|co-op|so-so|hi-fi|no-go|wi-fi|to-do|bi-weekly|up| en "),
    "dates of CLDR, Java, .NET and Moment": (
        "dd.MM.yyyy|MMM d, y|YYYY-MM-DD HH:mm|EEEE, d MMMM yyyy|h:mm a|HH:mm|HHmmss|yyyyMMdd|yMMMd|d. M.|M/d/yy"
        "|MM/yyyy|mm:ss|MMMM Do YYYY, h:mm:ss a|yyyy-MM-dd'T'HH:mm:ss|yyyy-MM-dd'T'HH:mm:ss.SSSXXX|d 'de' MMMM 'de' y"
        "|MMMM D [at] h:mm A|[Today at] LT|M/d/yyyy h:mm:ss tt|yyyy年M月d日|MMMM|EEEE|yyyy|LLLL|dddd, LL|E, d MMM y",
        "Hmm|Mmm|mm-hmm|Mo|Sun|Dec|Ms E|M/F|he/she|s/he|E/S|S M T W T F S|a.m.|e.g.|D. M. Miller|methods|seemed"
        "|themes|dyed|[XGATE RAM]|Day [D]|h|min|d|XXL|LOL|Yes, M. D. is a date"),
    "dates of PHP": ("d/m/Y|Y-m-d|F j, Y|D, d M Y H:i:s|H:i|g:i a|d.m.y", "A/b|y/n|Y/N|j. F."),
    "dates of strftime": (
        "%d.%m.%Y|%B %d, %Y|%H:%M|%-d. %b|%I:%M %p|%s: %s",
        "The date is %d.%m.%Y|%s files|%d 件|50% off"),
    "dates": (
        "2020-01-01T00:00:00Z|2020-01-01 10:00:00 UTC|Mon, 01 Jan 2020 00:00:00 GMT|PT1H30M|P1D|P3Y6M4DT12H30M5S",
        "Today at noon|Page 2|PIN|PDF|Mon|10 min left"),
    "time zones": (
        "Europe/Berlin|America/New_York|America/Argentina/Salta|Etc/GMT+1",
        "Europe|Europe/Asia|Asia/Pacific|Etc"),
    "MIME types": (
        "application/json|text/html; charset=utf-8|image/*|image/svg+xml|text/plain|application/vnd.ms-excel|font/ttf"
        "|image/png,image/jpeg|text/csv, application/json"
        "|multipart/form-data; boundary=x",
        "image/video|audio/video|text/image|Text/Bild"),
    "identifiers": (
        "550e8400-e29b-41d4-a716-446655440000|{550e8400-e29b-41d4-a716-446655440000}|a1b2c3d4e5|0xFF00FF"
        "|d41d8cd98f00b204e9800998ecf8427e|SGVsbG8gV29ybGQh|SGVsbG8gd29ybGQ=|eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"
        "|00:1A:2B:3C:4D:5E|fe80::1|" + "a" * 61,
        "facade|decade|Defaced|deadbeef|3GPP2-Multimediadatei|Lotus-1-2-3-Tabelle|Internationalization2"),
    "colours": ("#fff|#ff0000|rgba(1, 2, 3, x)|hsl(1 2% 3%)|oklch(40% 0.2 30)", "Red|red|Hi (there)|Price ($)"),
    "CSS": (
        "10px|1.5rem|10px 20px auto|1fr 2fr|calc(100% - 10px)|var(--x)|translate(10 20)|btn btn-primary"
        "|flex items-center|linear-gradient(90deg, rgb(1, 2, 3), red)|text-sm|mt-4 px-2|hover:bg-blue-500 text-white"
        "|md:w-1/2 lg:flex-row|margin: 0 auto; color: red|color: #fff|z-index: 10;|p { color: red; }"
        "|Arial, Helvetica, sans-serif",
        "auto|left|bold|primary|hidden|row|card|flex grid|fixed border|flex your muscles|text-based|state-of-the-art"
        "|self-control|top-left|Zoom (max)|url (x)|Max. 5 kg|z-index value|color: the colour of the dog"
        "|text: a; line: b|Fonts with a serif|width: how wide; height: how high?|Note: margin"),
    "codes, keys and requests": (
        "UTF-8|utf-8|ISO-8859-1|SHA256|MP3|Ctrl+S|Ctrl-C|<Primary>q|<Ctrl><Alt>Delete|⌘Q|⇧⌘P|Alt-F4"
        "|CmdOrCtrl+Shift+P|getDogs()|onClick(event);|GET /api/dogs",
        "Alt-text|Win-win|Control-group|<Name>x|A-B|KEY|C++|Press Ctrl+S now|Dogs()|GET it|Dog+Cat"),
    "lists of data": (
        "Ctrl+C, Ctrl+V|image/png; image/jpeg|README.md LICENSE.txt|UTF-8\nUTF-16|a.b.c,\nsnake_case\n",
        "README.md, please|Ctrl+C or Ctrl+V|5 km|3.5 km|10 GB|en 2020|Ctrl+C, copy"),
    "icons": (
        "fa-home|fas fa-home|fa fa-lg fa-home|mdi:home-outline|mdi-home|glyphicon glyphicon-ok|icon-user",
        "home|Icon|iconic|key:value pairs"),
    "units": ("km/h|GB|kHz|mm|kg", "5 MB of data|10 kg left|W|MBA"),
    "cron": ("*/5 * * * *|0 0 * * MON-FRI|0 12 * * ?|@daily", "12 dogs|1 2 3 4 dogs|* * *a"),
    "drawings": ("M10 10 L20 20 Z|M0 0h24v24H0z|m1-2c3,4 5,6 7,8", "M4 screw|M 8|Mach 2"),
    "regular expressions": ("^[A-Z]+$|^\\d{3} \\d{4}$|\\d{3}-\\d{4}|[a-z0-9]+|(?:ab)+", "[d-float]|[a]|costs $"),
    "entities": ("&nbsp;|&copy; &mdash;|&#169;", "&copy; Company|A &amp; B|H&M sale"),
    "SQL": (
        "SELECT name FROM users|SELECT * FROM users WHERE a = 1|INSERT INTO users VALUES (1)|DELETE FROM users"
        "|UPDATE users SET a = 1|CREATE TABLE IF NOT EXISTS users (id)|DROP TABLE users;",
        "Select a dog from the list|SELECT A DOG FROM THE LIST|Update set of dogs|update"
        "|DROP TABLE is not allowed here|ALTER TABLE / ADD CONSTRAINT is not supported|Delete from users' list"),
    "symbols": (":year|:smile:|@:common.ok", "Year: 1|@home now|a: b"),
    "words": (
        "en",
        "Open|Save|data|error|home|type|text|button|name|delete|on|off|yes|日本語|Café|Ja|Mutter|iPhone user"
        "|Made in Germany|Class A|{count} dogs|Hello {name}|.NET is here|UPPER CASE|Loading..."),
}
CASES = [(text, False) for data, _ in STRINGS.values() for text in data.split("|")] + [
    (text, True) for _, messages in STRINGS.values() for text in messages.split("|")]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_data_is_told_from_text_by_its_form(text, expected):
    assert is_message(text) == expected


@pytest.mark.parametrize(("key", "text", "expected"), [
    ("lang", "it", False), ("language", "no", False), ("locale", "id", False), ("languages", "deu", False),
    ("defaultLocale", "is", False), ("hreflang", "he", False), ("language", "Language", True),
    ("language", "Deutsch", True), ("slang", "it", True),
    ("color", "red", False), ("backgroundColor", "white", False), ("color", "Color", True), ("color", "color", True),
    ("red", "red", True), ("title", "red", True),
    ("icon", "home", False), ("icon", "icon", True), ("icon", "Home", True), ("iconLabel", "Home", True),
    ("className", "main-box wide", False), ("class", "class", True), ("class", "First class", True)])
def test_the_key_decides_where_data_has_the_form_of_a_word(key, text, expected):
    assert is_message(text, key) == expected
    found = [text] if expected else []
    assert texts(JsonDocument(json.dumps({key: text}).encode())) == found
    assert texts(JsonDocument(json.dumps({"x": [{key: [text]}]}).encode())) == found
    assert texts(YamlDocument(f"{key}: '{text}'\n".encode())) == found
    assert texts(PropertiesDocument(f"{key}={text}\n".encode())) == found


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "a:" + "/" * 500_000 + " ", "_" * 1_000_000 + "!", "a." * 500_000, "aA" * 500_000, "a " * 500_000, "rgb(" * 200_000,
    " " * 1_000_000 + "a", "M1" * 500_000, "\\" * 1_000_000 + "d", "[" * 1_000_000, "*/" * 500_000, "[a" * 400_000,
    "a1" * 500_000 + "!", "a-" * 500_000, "video/" + "a-" * 500_000 + "!", "(?" * 500_000, "\\d" * 500_000 + " ",
    "0:" * 400_000 + "g", "P1Y" * 300_000, "a/" * 500_000 + "*", "SELECT " * 42, "a FROM " * 42, "%a" * 149 + "é",
    "&a;" * 99 + "é", "1 " * 149 + "é", "text-" * 59, "flex " * 59 + "é", "min(" * 70])
def test_hostile_strings_take_linear_time(text):
    is_message(text)


@pytest.mark.parametrize(("key", "text", "is_data"), [
    ("menu.mnemonic", "D", True), ("fileAccessKey", "F", True), ("open.accesskey", "O", True), ("letter", "D", False),
    ("shortcut", "Dog", False), ("currency", "EUR", True), ("country", "DE", True), ("money", "EUR", False),
    ("country", "Germany", False)])
def test_a_key_tells_that_a_short_string_is_data(key, text, is_data):
    assert is_message(text, key) is not is_data


ONE_OF_EACH = {
    "po": 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "{}"\nmsgstr ""\n',
    "ts": '<TS><context><message><source>{}</source><translation type="unfinished"/></message></context></TS>',
    "xliff": '<xliff version="1.2"><file><body><trans-unit id="1"><source>{}</source></trans-unit></body></file>'
             "</xliff>",
    "tmx": '<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu></body></tmx>',
    "resx": '<root><data name="A"><value>{}</value></data></root>',
    "android": '<resources><string name="a">{}</string></resources>',
    "stringsdict": "<plist><dict><key>a</key><string>{}</string></dict></plist>",
    "strings": '"a" = "{}";\n',
    "xcstrings": '{{"sourceLanguage": "en", "strings": {{"{}": {{}}}}}}',
    "properties": "a={}\n",
    "json": '{{"a": "{}"}}',
    "yaml": 'a: "{}"\n',
    "csv": 'en,de\n"{}",\n',
    "html": "<p>{}</p><p><b>{}</b></p>",
    "markdown": "- {}\n",
    "srt": "1\n00:00:01,000 --> 00:00:02,000\n{}\n",
}


@pytest.mark.parametrize("text", [
    "Ctrl+Q", "yyyy-MM-dd", "image/png", "README.md", "UTF-8", "Ctrl+C, Ctrl+V", "#ff0000"])
@pytest.mark.parametrize("format", ONE_OF_EACH)
def test_every_format_keeps_data(format, text):
    data = ONE_OF_EACH[format].format(text, text).encode()
    divided = DividedDocument(parse(data, format, "name", "en", "de"))
    assert divided.sentences == []
    assert divided.join([], "de") == data


@pytest.mark.parametrize("text", ["OK", "Name", "E-mail", "N/A", "Red", "Ctrl", "Wi-Fi", "5 km", "Press Ctrl+Q"])
@pytest.mark.parametrize("format", ONE_OF_EACH)
def test_every_format_translates_labels(format, text):
    data = ONE_OF_EACH[format].format(text, text).encode()
    assert set(DividedDocument(parse(data, format, "name", "en", "de")).sentences) == {text}


@pytest.mark.parametrize(("text", "sentences"), [
    ("C_redits", ["Credits"]), ("_File", ["File"]), ("E_xit", ["Exit"]), ("user_id", []), ("_en", []),
    ("yyyy\\nHH:mm", []),
    ("Open\\tCtrl+O", ["Open"])])
def test_a_label_with_an_access_key_is_no_name(text, sentences):
    data = ONE_OF_EACH["po"].format(text).encode()
    assert DividedDocument(parse(data, "po", "name", "en", "de")).sentences == sentences


def test_a_segment_of_data_is_copied_to_the_target():
    data = (b'<xliff version="1.2"><file><body><trans-unit id="1"><source>Key Ctrl+Q</source><seg-source>'
            b'<mrk mtype="seg">Key</mrk> <mrk mtype="seg">Ctrl+Q</mrk></seg-source></trans-unit></body></file></xliff>')
    divided = DividedDocument(parse(data, "xliff", "name", "en", "de"))
    assert divided.sentences == ["Key"]
    assert b'<mrk mtype="seg">TASTE</mrk> <mrk mtype="seg">Ctrl+Q</mrk></target>' in divided.join(["TASTE"], "de")


def test_a_word_of_a_reader_is_translated_whatever_its_form():
    assert DividedDocument(parse(b"eu\nen_US\n", "text", "name", "pt", "de")).sentences == ["eu", "en_US"]


WITH_COMMENT = {
    "po": '#. {1}\nmsgid "{0}"\nmsgstr ""\n',
    "ts": "<TS><context><message><source>{0}</source><extracomment>{1}</extracomment>"
          '<translation type="unfinished"/></message></context></TS>',
    "xliff": '<xliff version="1.2"><file><body><trans-unit id="1"><source>{0}</source><note>{1}</note></trans-unit>'
             "</body></file></xliff>",
    "resx": '<root><data name="A"><value>{0}</value><comment>{1}</comment></data></root>',
    "strings": '/* {1} */\n"a" = "{0}";\n',
    "properties": "# {1}\na={0}\n",
    "android": '<resources>\n<!-- {1} -->\n<string name="a">{0}</string></resources>',
}


@pytest.mark.parametrize("comment", [
    "{Locked}", "Do not translate.", "[DO NOT TRANSLATE]", "A product. Don't translate this", "Not translatable"])
@pytest.mark.parametrize("format", WITH_COMMENT)
def test_a_text_that_its_developer_asks_to_keep_stays(format, comment):
    data = WITH_COMMENT[format].format("Two dogs", comment).encode()
    assert DividedDocument(parse(data, format, "name", "en", "de")).sentences == []


@pytest.mark.parametrize("comment", [
    "{Locked='Red Car'}", "{Locked='Red', 'Red Car'} of {Locked='x'}", "Name. {MaxLength=20} {Placeholder='Red Car'}"])
@pytest.mark.parametrize("format", WITH_COMMENT)
def test_words_that_a_developer_locks_stay(format, comment):
    data = WITH_COMMENT[format].format("Open the Red Car", comment).encode()
    divided = DividedDocument(parse(data, format, "name", "en", "de"))
    assert divided.sentences == ["Open the {0}"]
    assert b"Red Car AUF" in divided.join(["{0} AUF"], "de")


@pytest.mark.parametrize("comment", ["{Locked=qps-ploc}", "Do not translate dogs as cats", "Dogs", ""])
@pytest.mark.parametrize("format", WITH_COMMENT)
def test_other_comments_change_nothing(format, comment):
    data = WITH_COMMENT[format].format("Two dogs", comment).encode()
    assert DividedDocument(parse(data, format, "name", "en", "de")).sentences == ["Two dogs"]
