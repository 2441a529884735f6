"""Each format: texts are found, an identical translation keeps every byte, another one changes only the texts."""

import csv
import io
import plistlib
import time

import polib
import pytest
from translate.storage import aresource, properties, resx, tmx, ts2, xliff, yaml
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import DocumentError
from seq2seq.documents.registry import FORMATS, parse

PO = r'''# German translation.
msgid ""
msgstr ""
"Project-Id-Version: files 3.1\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

# Note of a translator
#. Note of a developer
#: src/open.c:12
#, c-format
msgid "Cannot open \"%S\".\n"
msgstr ""

#: src/menu.c:3
#| msgid "Files"
msgctxt "menu|item"
msgid "File"
msgstr ""

#: src/menu.c:4
msgid "Close"
msgstr "Schließen"

#, fuzzy
msgid "Open"
msgstr "Öfnen"

msgid ""
"A first line that is rather long, so that the message is written on several "
"lines.\n"
"\tA second line with a tab and a \\.\n"
msgstr ""

#, c-format
msgid "%X file"
msgid_plural "%X files"
msgstr[0] ""
msgstr[1] ""

msgid "12"
msgstr ""
#~ msgid "Gone"
#~ msgstr ""
'''
PO_CHANGES = [('"Language: ', '"Language: de'), (r'''#, c-format
msgid "Cannot open \"%S\".\n"
msgstr ""''', r'''#, fuzzy, c-format
msgid "Cannot open \"%S\".\n"
msgstr "CANNOT OPEN \"%S\".\n"'''), ('''#| msgid "Files"
msgctxt "menu|item"
msgid "File"
msgstr ""''', '''#, fuzzy
#| msgid "Files"
msgctxt "menu|item"
msgid "File"
msgstr "FILE"'''), ('''msgid ""
"A first''', '''#, fuzzy
msgid ""
"A first'''), (r'''\\.\n"
msgstr ""''', r'''\\.\n"
msgstr ""
"A FIRST LINE THAT IS RATHER LONG, SO THAT THE MESSAGE IS WRITTEN ON SEVERAL "
"LINES.\n"
"\tA SECOND LINE WITH A TAB AND A \\.\n"'''), ('''#, c-format
msgid "%X file"''', '''#, fuzzy, c-format
msgid "%X file"'''), ('[0] ""', '[0] "%X FILE"'), ('[1] ""', '[1] "%X FILES"')]

XLIFF_1 = '''<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original="app" source-language="en" datatype="plaintext">
    <body>
      <trans-unit id="1">
        <source>Save &amp; <g id="1">close <x id="2"/></g>now</source>
        <note>A button</note>
      </trans-unit>
      <trans-unit id="2"><source>Open</source><target state="new">Open</target></trans-unit>
      <trans-unit id="3"><source>Done</source><target state="translated">Fertig</target></trans-unit>
      <trans-unit id="4" approved="yes"><source>Yes</source><target/></trans-unit>
      <trans-unit id="5"><source>Final</source><target state="final"/></trans-unit>
      <trans-unit id="6"><source>Empty</source><target/></trans-unit>
      <group translate="no"><trans-unit id="7"><source>Code</source></trans-unit>
        <trans-unit id="8" translate="yes"><source>Text</source></trans-unit></group>
      <trans-unit id="9"><source>Old</source><target>Alt</target>
        <alt-trans><source>Wrong</source></alt-trans></trans-unit>
      <trans-unit id="10"><source>  <bpt id="1">&lt;b&gt;</bpt>bold<ept id="1">&lt;/b&gt;</ept>, <bx
 id="3"/>slanted<ex id="4" rid="3"/><it id="5" pos="open">{i</it> </source></trans-unit>
      <trans-unit id="11">
        <source>One. Two.</source>
        <seg-source><mrk mid="0" mtype="seg">One.</mrk> <mrk mid="1" mtype="seg">Two.</mrk></seg-source>
      </trans-unit>
      <trans-unit id="12"><source>100 %</source></trans-unit>
    </body>
  </file>
</xliff>
'''
STATE = '<target state="needs-review-translation">'
XLIFF_1_CHANGES = [
    ('datatype="plaintext"', 'datatype="plaintext" target-language="de"'),
    ("now</source>\n", f'now</source>\n        {STATE}SAVE &amp; <g id="1">CLOSE <x id="2"/></g>NOW</target>\n'),
    ('<target state="new">Open', STATE + "OPEN"), ("Empty</source><target/>", f"Empty</source>{STATE}EMPTY</target>"),
    ("Text</source>", f"Text</source>{STATE}TEXT</target>"),
    ("{i</it> </source>", f'{{i</it> </source>{STATE}  <bpt id="1">&lt;b&gt;</bpt>BOLD<ept id="1">&lt;/b&gt;</ept>, <bx'
     '\n id="3"/>SLANTED<ex id="4" rid="3"/><it id="5" pos="open">{i</it> </target>'),
    ("</seg-source>", f'</seg-source>\n        {STATE}<mrk mid="0" mtype="seg">ONE.</mrk> <mrk mid="1" mtype="seg">TWO.'
     "</mrk></target>")]
XLIFF_2 = '''<?xml version="1.0"?>
<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en">
 <file id="f"><unit id="1">
  <originalData><data id="d">&lt;b&gt;</data></originalData>
  <segment>
   <source>Hello <pc id="1" dataRefStart="d">brave</pc> <mrk id="m" translate="no">World</mrk><ph id="2"/></source>
  </segment>
  <ignorable><source> </source></ignorable>
  <segment state="initial"><source>A <sc id="3"/>b<ec startRef="3"/></source><target>A</target></segment>
  <segment state="final"><source>Stays</source></segment>
  <segment><source>Kept</source><target>Behalten</target></segment>
 </unit></file>
</xliff>'''
XLIFF_2_CHANGES = [
    ('srcLang="en"', 'srcLang="en" trgLang="de"'),
    ('<segment>\n   <source>', '<segment state="translated">\n   <source>'),
    ('<ph id="2"/></source>', '<ph id="2"/></source>\n   <target>HELLO <pc id="1" dataRefStart="d">BRAVE</pc> <mrk '
     'id="m" translate="no">World</mrk><ph id="2"/></target>'),
    ('state="initial"', 'state="translated"'),
    ("<target>A</target>", '<target>A <sc id="3"/>B<ec startRef="3"/></target>')]

TS = '''<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" sourcelanguage="en">
<context>
    <name>MainWindow</name>
    <message>
        <location filename="../main.cpp" line="12"/>
        <source>&amp;Open &quot;file&quot;, it&apos;s
new<byte value="x1b"/></source>
        <translation type="unfinished"></translation>
    </message>
    <message>
        <source>Close</source>
        <translation>Schließen</translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <translation type="unfinished"><numerusform></numerusform><numerusform/></translation>
    </message>
    <message>
        <source>Save</source>
        <translation type="unfinished"/>
    </message>
    <message><source>Begun</source><translation type="unfinished">Begonnen</translation></message>
    <message><source>Gone</source><translation type="vanished"></translation></message>
    <message><source>Older</source><translation type="obsolete"></translation></message>
</context>
</TS>
'''
TS_CHANGES = [
    ('"en">', '"en" language="de">'),
    ('"unfinished"></translation>',
     '"unfinished">&amp;OPEN &quot;FILE&quot;, IT&apos;S\nNEW<byte value="x1b"/></translation>'),
    ("<numerusform></numerusform><numerusform/>", "<numerusform>%N FILE(S)</numerusform>" * 2),
    ('"unfinished"/>', '"unfinished">SAVE</translation>')]

TMX = '''<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header creationtool="x" creationtoolversion="1" segtype="sentence" o-tmf="x" adminlang="en" srclang="en"
          datatype="plaintext"/>
  <body>
    <tu tuid="1">
      <tuv xml:lang="en-GB">
        <prop type="x">a</prop>
        <seg>Press <bpt i="1">&lt;b&gt;</bpt>this<ept i="1">&lt;/b&gt;</ept> &amp; <ph>{1}</ph> <hi>that</hi>.</seg>
      </tuv>
    </tu>
    <tu tuid="2"><tuv xml:lang="EN"><seg>One</seg></tuv><tuv xml:lang="fr"><seg>Un</seg></tuv></tu>
    <tu tuid="3"><tuv lang="en"><seg>Two</seg></tuv><tuv lang="de-AT"><seg>Zwei</seg></tuv></tu>
    <tu tuid="4"><tuv xml:lang="fr"><seg>Trois</seg></tuv></tu>
  </body>
</tmx>
'''
TMX_CHANGES = [
    ("</seg>\n      </tuv>", '</seg>\n      </tuv>\n      <tuv xml:lang="de">\n        <seg>PRESS <bpt i="1">&lt;b&gt;'
     '</bpt>THIS<ept i="1">&lt;/b&gt;</ept> &amp; <ph>{1}</ph> <hi>THAT</hi>.</seg>\n      </tuv>'),
    ("<seg>One</seg></tuv>", '<seg>One</seg></tuv><tuv xml:lang="de"><seg>ONE</seg></tuv>')]

ANDROID = r'''<?xml version="1.0" encoding="utf-8"?>
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    <!-- Title -->
    <string name="a">It\'s \"new\"\nhere &amp; there</string>
    <string name="b" translatable="false">Fixed</string>
    <string name="c">Hello <b>brave <xliff:g id="n" example="World">%1$s</xliff:g></b>!</string>
    <string name="d">"  It's quoted  "</string>
    <string name="e"><![CDATA[<a href=\"x\">More &amp; more</a><br>]]></string>
    <string name="f">@string/a</string>
    <string name="g">\@home \? \u00e9\ud83d\ude00</string>
    <string name="h">
        Two
        lines
    </string>
    <string name="i">en_US</string>
    <string name="empty"/>
    <string-array name="j">
        <item>One</item>
        <item>@string/a</item>
    </string-array>
    <plurals name="k">
        <item quantity="one">%d file</item>
        <item quantity="other">%d files</item>
    </plurals>
    <color name="l">red</color>
</resources>
'''
ANDROID_CHANGES = [
    (r"It\'s \"new\"\nhere &amp; there", r"IT\'S \"NEW\"\nHERE &amp; THERE"), ("Hello <b>brave ", "HELLO <b>BRAVE "),
    ("It's quoted", "IT'S QUOTED"), ("More &amp; more", "MORE &AMP; MORE"),
    (r"\@home \? \u00e9\ud83d\ude00", r"\@HOME ? É😀"), ("Two\n        lines", "TWO LINES"), ("One", "ONE"),
    ("%d file", "%D FILE"), ("FILEs", "FILES")]

ARB = r'''{
  "@@locale": "en",
  "title" : "Hello \"World\"",
  "@title": {"description": "Title of the page", "placeholders": {"n": {"example": "Some text"}}},
  "menu": {"open": "Open", "items": ["One", 2, null, true, ["Two words"], {"a": ""}]},
  "language": "en_US", "color": "#ff0000", "url": "https://example.org/a", "mail": "me@example.org",
  "name": "fileName", "css": "rgb(1, 2, 3)", "class": "a.b.C", "number": "12 %", "half": "\ud800 a",
  "lines": " First\nsecond "
}
'''
ARB_CHANGES = [('"@@locale": "en"', '"@@locale": "de"'),
               (r'Hello \"World\"', r'HELLO \"WORLD\"'), ('"Open"', '"OPEN"'), ("One", "ONE"),
               ("Two words", "TWO WORDS"), (r"First\nsecond", r"FIRST\nSECOND")]

PROPERTIES = r'''# Comment = not text
! another \
title=Hello World
  spaced.key : With a\: colon and \u00e9
long = A long value \
       on two lines, \
       or three
key\ with\ space Value
empty=
empty.too
name=java.util.logging.Handler
number=12
path=/usr/share
lines=One\nTwo\tThree \
'''
PROPERTIES_CHANGES = [
    ("Hello World", "HELLO WORLD"), (r"With a\: colon and \u00e9", r"WITH A: COLON AND \u00c9"),
    ("A long value \\\n       on two lines, \\\n       or three", "A LONG VALUE ON TWO LINES, OR THREE"),
    ("Value", "VALUE"), ("One\\nTwo\\tThree \\\n", "ONE\\n\\\nTWO\\tTHREE ")]

SRT = """\ufeff1
00:00:01,000 --> 00:00:02,500
<i>I went to
the big</i> town

2
00:00:02,600 --> 00:00:04,000 X1:0
{\\an8}to buy bread.\x20

3
00:00:05,000 --> 00:00:06,000
- Hello.
- Hi <b>you</b>!

4
00:00:15,000 --> 00:00:16,000
♪♪
"""
SRT_CHANGES = [("I went to\nthe big", "I WENT TO\nTHE BIG"), (" town", " TOWN"), ("to buy bread", "TO BUY BREAD"),
               ("Hello", "HELLO"), ("Hi ", "HI "), ("you", "YOU")]
VTT = """WEBVTT - x

STYLE
::cue { color: red }

NOTE a note

id-1
00:01.000 --> 00:02.000 align:start
<v Anna>Fish &amp; <c.x>chips</c> are
good

00:02.000 --> 00:03.000
<v Bob>Yes.
"""
VTT_CHANGES = [("Fish &amp; <c.x>chips</c> are\ngood", "FISH &amp; <c.x>CHIPS</c> ARE\nGOOD"), ("Yes", "YES")]
ASS = """[Script Info]
Title: x

[V4+ Styles]
Format: Name, Fontname
Style: Default,Arial

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Comment: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,a comment
Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{\\an8}One {\\i1}two{\\i0},\\Nthree
Dialogue: 0,0:00:02.00,0:00:03.00,Default,,0,0,0,,four\\hfive.
Dialogue: 0,0:00:04.00,0:00:05.00,Default,,0,0,0,,{\\p1}m 0 0 l 1 1{\\p0}
"""
ASS_CHANGES = [("One ", "ONE "), ("two", "TWO"), ("Nthree", "NTHREE"), ("four\\hfive", "FOUR\\hFIVE")]
MARKDOWN = "---\na: b\n---\n# One *two*\n\n- three `four`\n- [five](six)\n\n| a |\n|---|\n| b |\n\n```\nseven\n```\n"
HTML = "<h1>One <i>two</i></h1>\n<!-- three --><p class='a'>Five <code>six</code></p><script>seven</script>\n"
TEXT = "One\n\n > > two \n\t12\n"

STRINGS = r'''/* Title of the window */
"title" = "Hello \"World\"\nSay %@";
"key with = and ;"="It's 'here'";
bare.key = Word;
"code" = "camelCase";  // "not" = "this";
"Shown as it is";
'single' /* a */ = /* b */ 'It\'s "one"';
'''
STRINGS_CHANGES = [(r'"Hello \"World\"\nSay %@"', r'"HELLO \"WORLD\"\nSAY %@"'), ("It's 'here'", "IT'S 'HERE'"),
                   ("= Word", '= "WORD"'), ('"Shown as it is"', '"Shown as it is" = "SHOWN AS IT IS"'),
                   (r"'It\'s", r"'IT\'S"), ('"one"', '"ONE"')]
STRINGSDICT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
\t<key>dogs</key>
\t<dict>
\t\t<key>NSStringLocalizedFormatKey</key>
\t\t<string>You see %#@dogs@ here</string>
\t\t<key>dogs</key>
\t\t<dict>
\t\t\t<key>NSStringFormatSpecTypeKey</key>
\t\t\t<string>NSStringPluralRuleType</string>
\t\t\t<key>NSStringFormatValueTypeKey</key>
\t\t\t<string>lld</string>
\t\t\t<!-- a note -->
\t\t\t<key>one</key>
\t\t\t<string>%lld dog</string>
\t\t\t<key>other</key>
\t\t\t<string>%lld dogs &amp; more</string>
\t\t</dict>
\t</dict>
\t<key>wide</key>
\t<dict><key>NSStringDeviceSpecificRuleType</key><dict><key>mac</key><string>Click it</string></dict></dict>
\t<key>plain</key> <string>Plain text</string>
</dict>
</plist>
"""
STRINGSDICT_CHANGES = [("You see %#@dogs@ here", "YOU SEE %#@DOGS@ HERE"), ("%lld dog<", "%LLD DOG<"), (
    "%lld dogs &amp; more", "%LLD DOGS &amp; MORE"), ("Click it", "CLICK IT"), ("Plain text", "PLAIN TEXT")]
XCSTRINGS = """{
  "sourceLanguage" : "en",
  "strings" : {
    "" : {

    },
    "%lld dogs" : {
      "localizations" : {
        "en" : {
          "variations" : {
            "plural" : {
              "one" : {
                "stringUnit" : {
                  "state" : "translated",
                  "value" : "%lld dog"
                }
              },
              "other" : {
                "stringUnit" : {
                  "state" : "translated",
                  "value" : "%lld dogs"
                }
              }
            }
          }
        },
        "fr" : {
          "stringUnit" : {
            "state" : "translated",
            "value" : "chiens"
          }
        }
      }
    },
    "Done" : {
      "localizations" : {
        "de" : {
          "stringUnit" : {
            "state" : "translated",
            "value" : "Fertig"
          }
        }
      }
    },
    "Hello %@" : {

    },
    "Keep" : {
      "shouldTranslate" : false
    },
    "key_of_code" : {
      "comment" : "A title",
      "localizations" : {
        "en" : {
          "stringUnit" : {
            "state" : "new",
            "value" : "A title"
          }
        },
        "de" : {
          "stringUnit" : {
            "state" : "new",
            "value" : ""
          }
        }
      }
    }
  },
  "version" : "1.0"
}
"""
XCSTRINGS_CHANGES = [('''      "localizations" : {
        "en" : {
          "variations" : {''', '''      "localizations" : {
        "de" : {
          "variations" : {
            "plural" : {
              "one" : {
                "stringUnit" : {
                  "state" : "needs_review",
                  "value" : "%LLD DOG"
                }
              },
              "other" : {
                "stringUnit" : {
                  "state" : "needs_review",
                  "value" : "%LLD DOGS"
                }
              }
            }
          }
        },
        "en" : {
          "variations" : {'''), ('''    "Hello %@" : {

    }''', '''    "Hello %@" : {
      "localizations" : {
        "de" : {
          "stringUnit" : {
            "state" : "needs_review",
            "value" : "HELLO %@"
          }
        }
      }
    }'''), ('''            "state" : "new",
            "value" : ""''', '''            "state" : "needs_review",
            "value" : "A TITLE"''')]
YAML = r'''# Texts of the page
en: &root
  title: "Hello \"World\"" # a title
  plain: &plain Plain text - no,
    on two lines
  single: 'It''s here'
  lines: |
    First line
      Second line

    Third line

  folded: >-
    A paragraph
    on two lines
  list: [One, "Two words", '%d.%m.%Y', :year, 12, yes, {a: Three}]
  alias: *plain
  code: camelCase
  tagged: !html Some text
  dogs:
    one: "%{count} dog"
    other: "%{count} dogs"
'''
YAML_CHANGES = [("en: &root", "de: &root"), (r'Hello \"World\"', r'HELLO \"WORLD\"'), (
    "Plain text - no,\n    on two lines", "PLAIN TEXT - NO, ON TWO LINES"), ("It''s here", "IT''S HERE"), (
    "First line\n      Second line\n\n    Third line", "FIRST LINE\n      SECOND LINE\n\n    THIRD LINE"), (
    "A paragraph\n    on two lines", "A PARAGRAPH ON TWO LINES"), ("One,", "ONE,"), ("Two words", "TWO WORDS"), (
    "Three", "THREE"), ("%{count} dog\"", "%{COUNT} DOG\""), ("%{count} dogs", "%{COUNT} DOGS")]
RESX = """<?xml version="1.0" encoding="utf-8"?>
<root>
  <xsd:schema id="root" xmlns:xsd="http://www.w3.org/2001/XMLSchema"><xsd:element name="data" /></xsd:schema>
  <resheader name="reader"><value>System.Resources.ResXResourceReader, System.Windows.Forms</value></resheader>
  <data name="Save" xml:space="preserve">
    <value>&amp;Save {0} &lt;now&gt;</value>
    <comment>A button</comment>
  </data>
  <data name="Icon" type="System.Resources.ResXFileRef"><value>icon.ico;System.Drawing.Icon</value></data>
  <data name="Picture" mimetype="application/x-microsoft.net.object.bytearray.base64"><value>AAEA AAD</value></data>
  <data name="button1.Text"><value>  Two
lines </value></data>
  <data name="button1.Anchor"><value>Top, Left</value></data>
  <data name="&gt;&gt;button1.Name"><value>button</value></data>
  <data name="empty"><value /></data>
  <data name="id"><value>fileName</value></data>
</root>
"""
RESX_CHANGES = [("&amp;Save {0} &lt;now&gt;", "&amp;SAVE {0} &lt;NOW&gt;"), ("Two\nlines", "TWO\nLINES")]
CSV = """key,en,de,note
a,Hello,,Some note
b,"Say ""hi"", you","",
c,Done,Fertig,
d,=A1&" dogs",,
e,Short
f,"Two
lines",,"x"

g,12,,
h,camelCase,,
"""
CSV_CHANGES = [("a,Hello,,", "a,Hello,HELLO,"), ('you","",', 'you","SAY ""HI"", YOU",'), ("e,Short", "e,Short,SHORT"), (
    'Two\nlines",', 'Two\nlines","TWO\nLINES"')]
TABLE = "\ufeffcontext;Source;Target\nmenu;One; \nmenu;\"Two; three\"\n"
TABLE_CHANGES = [("One; ", "One;ONE"), ('"Two; three"', '"Two; three";"TWO; THREE"')]

# Name of a sample: format, text, texts of its blocks with their lines, changes of the source that translate it.
SAMPLES = {
    "po": ("po", PO, [('Cannot open "%S".', 15), ("File", 21), (
        "A first line that is rather long, so that the message is written on several lines.\n\tA second line with a "
        "tab and a \\.", 32), ("%X file", 39), ("%X files", 40)], PO_CHANGES),
    "xliff 1.2": ("xliff", XLIFF_1, [("Save & close now", 6), ("Open", 9), ("Empty", 13), ("Text", 15),
                                     ("bold, slanted", 18), ("One.", 22), ("Two.", 22)], XLIFF_1_CHANGES),
    "xliff 2.0": ("xliff", XLIFF_2, [("Hello brave ", 6), ("A b", 9)], XLIFF_2_CHANGES),
    "ts": ("ts", TS, [('&Open "file", it\'s\nnew', 8), ("%n file(s)", 17), ("Save", 21)], TS_CHANGES),
    "tmx": ("tmx", TMX, [("Press this &  that.", 10), ("One", 13)], TMX_CHANGES),
    "android": ("android", ANDROID, [
        ('It\'s "new"\nhere & there', 4), ("Hello brave !", 6), ("It's quoted", 7), ("More &amp; more", 8),
        ("@home ? é😀", 10), ("Two lines", 11), ("One", 18), ("%d file", 22), ("%d files", 23)], ANDROID_CHANGES),
    "arb": ("json", ARB, [('Hello "World"', 3), ("Open", 5), ("One", 5), ("Two words", 5), ("First\nsecond", 8)],
            ARB_CHANGES),
    "properties": ("properties", PROPERTIES, [
        ("Hello World", 3), ("With a: colon and é", 4), ("A long value on two lines, or three", 5), ("Value", 8),
        ("One\nTwo\tThree", 14)], PROPERTIES_CHANGES),
    "srt": ("srt", SRT, [("I went to the big town to buy bread.", 3), ("Hello.", 12), ("Hi you!", 12)], SRT_CHANGES),
    "vtt": ("vtt", VTT, [("Fish & chips are good", 10), ("Yes.", 14)], VTT_CHANGES),
    "ass": ("ass", ASS, [("One two, three four\u00a0five.", 11)], ASS_CHANGES),
    "markdown": ("markdown", MARKDOWN, [("One two", 4), ("three", 6), ("five", 7), ("a", 9), ("b", 11)], [
        ("One *two*", "ONE *TWO*"), ("three", "THREE"), ("five", "FIVE"), ("| a", "| A"), ("| b", "| B")]),
    "html": ("html", HTML, [("One two", 1), ("Five ", 2)], [("One <i>two", "ONE <i>TWO"), ("Five", "FIVE")]),
    "text": ("text", TEXT, [("One", 1), ("two", 3)], [("One", "ONE"), ("two", "TWO")]),
    "strings": ("strings", STRINGS, [('Hello "World"\nSay %@', 2), ("It's 'here'", 3), ("Word", 4), (
        "Shown as it is", 6), ('It\'s "one"', 7)], STRINGS_CHANGES),
    "stringsdict": ("stringsdict", STRINGSDICT, [
        ("You see %#@dogs@ here", 8), ("%lld dog", 17), ("%lld dogs & more", 19), ("Click it", 23), ("Plain text", 24)],
        STRINGSDICT_CHANGES),
    "xcstrings": ("xcstrings", XCSTRINGS, [("%lld dog", 9), ("%lld dogs", 9), ("Hello %@", 45), ("A title", 54)],
                  XCSTRINGS_CHANGES),
    "yaml": ("yaml", YAML, [
        ('Hello "World"', 3), ("Plain text - no, on two lines", 4), ("It's here", 6), (
            "First line\n  Second line\n\nThird line", 7), ("A paragraph on two lines", 13), ("One", 16), (
            "Two words", 16), ("Three", 16), ("%{count} dog", 21), ("%{count} dogs", 22)], YAML_CHANGES),
    "resx": ("resx", RESX, [("&Save {0} <now>", 6), ("Two\nlines", 11)], RESX_CHANGES),
    "csv": ("csv", CSV, [("Hello", 2), ('Say "hi", you', 3), ("Short", 6), ("Two\nlines", 7)], CSV_CHANGES),
    "csv with semicolons": ("csv", TABLE, [("One", 2), ("Two; three", 3)], TABLE_CHANGES),
}


def parsed(format, text, encoding="utf-8"):
    return parse(text.encode(encoding), format, "name", "en", "de")


def changed(text, changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_every_format_of_text_has_a_sample():
    assert {format for format, *_ in SAMPLES.values()} == {*FORMATS} - {"docx", "pptx", "odt"}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", SAMPLES)
def test_only_the_texts_of_a_document_change(name, line_end):
    format, text, blocks, changes = SAMPLES[name]
    source = text.replace("\n", line_end)
    document = parsed(format, source)
    assert [(block.text.replace("\r\n", "\n"), block.place) for block in document.blocks] == [
        (text, f"line {line}") for text, line in blocks]
    assert unchanged(document) == source.encode()
    assert upper(document).decode() == changed(text, changes).replace("\n", line_end)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_byte_order_mark_is_kept_and_decides_about_the_encoding(name):
    format, text, _, changes = SAMPLES[name]
    text = "\ufeff" + text.removeprefix("\ufeff")
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        declared = text.replace("UTF-8", "UTF-16").replace("utf-8", "utf-16") if encoding != "utf-8" else text
        if declared.startswith("\ufeff<?xml") and encoding == "utf-8":
            declared = declared.replace("UTF-8", "ISO-8859-1", 1)
        document = parsed(format, declared, encoding)
        assert unchanged(document) == declared.encode(encoding)
        if format != "properties":                                              # in which \u00e9 may become É
            assert upper(document).decode(encoding) == changed(declared, changes)


def targets(data, name):
    """Return the translations of a document as other programs read them."""
    if name == "po":
        return [entry.msgstr for entry in polib.pofile(data.decode())]
    if name == "csv":
        return [row[2] for row in csv.reader(io.StringIO(data.decode(), newline="")) if len(row) > 2]
    if name == "stringsdict":
        return [value for value in plistlib.loads(data).values() if isinstance(value, str)]
    store = {"xliff 1.2": xliff.xlifffile, "ts": ts2.tsfile, "tmx": tmx.tmxfile, "properties": properties.javafile,
             "android": aresource.AndroidResourceFile, "strings": properties.stringsutf8file, "resx": resx.RESXFile,
             "yaml": yaml.RubyYAMLFile}[name](
                 **{"personality": "java"} if name == "properties" else {})
    store.parse(data)
    return [str(unit.source if name in ("properties", "strings") else unit.gettarget("de") if name == "tmx" else
                unit.target) for unit in store.units]


@pytest.mark.parametrize(("name", "expected"), [
    ("xliff 1.2", ["SAVE & CLOSE NOW", "OPEN", "Fertig", "EMPTY", "ONE. TWO."]), ("tmx", ["ONE"]),
    ("ts", ["Schließen", "%N FILE(S)", "SAVE"]),
    ("android", ['IT\'S "NEW"\nHERE & THERE', "  IT'S QUOTED  ", "TWO LINES"]),
    ("strings", ['HELLO "WORLD"\nSAY %@', "IT'S 'HERE'", "WORD"]), ("stringsdict", ["PLAIN TEXT"]),
    ("resx", ["&SAVE {0} <NOW>", "  TWO\nLINES "]), ("csv", ["HELLO", 'SAY "HI", YOU', "TWO\nLINES", "Fertig"]),
    ("yaml", ['HELLO "WORLD"', "IT'S HERE", "FIRST LINE\n  SECOND LINE\n\nTHIRD LINE\n", "A PARAGRAPH ON TWO LINES"]),
    ("properties", ["HELLO WORLD", "WITH A: COLON AND É", "A LONG VALUE ON TWO LINES, OR THREE"]),
    ("po", ['CANNOT OPEN "%S".\n', "FILE", "Öfnen", "A FIRST LINE THAT IS RATHER LONG, SO THAT THE MESSAGE IS WRITTEN "
            "ON SEVERAL LINES.\n\tA SECOND LINE WITH A TAB AND A \\.\n"])])
def test_other_programs_read_the_translations(name, expected):
    format, text, *_ = SAMPLES[name]
    assert {*expected} <= {*targets(upper(parsed(format, text)), name)}


@pytest.mark.parametrize(("format", "text"), [
    ("po", PO.rstrip("\n")), ("po", ""), ("po", "# only a comment"), ("json", '"a"'), ("json", "1"), ("json", "[]"),
    ("properties", PROPERTIES.replace("\n", "\r")), ("properties", ""), ("properties", "a=b\\"), ("srt", ""),
    ("srt", "\ufeff\n \n"), ("srt", "1\n00:00:01,000 --> 00:00:02,000\n10:30:15 - the end, 10,5 - 11:30\n"),
    ("vtt", "WEBVTT"), ("vtt", "\ufeffWEBVTT"), ("ass", ""), ("ass", "[Events]\n"), ("markdown", ""), ("html", ""),
    ("html", "  "), ("text", ""), ("tmx", "<tmx><body/></tmx>"), ("yaml", ""), ("yaml", "# a"), ("yaml", "a b"),
    ("yaml", "a:\n...\n---\nb: 1"), ("strings", ""), ("strings", "// a"), ("resx", "<root/>"), ("csv", "en,de"),
    ("stringsdict", "<plist/>"), ("xcstrings", '{"sourceLanguage":"en","strings":{}}')])
def test_small_documents_keep_their_bytes(format, text):
    assert unchanged(parsed(format, text)) == text.encode()


def test_units_of_a_memory_are_found_by_any_code_of_their_languages():
    data = TMX.encode()
    assert parse(data, "tmx", "name", "eng", "deu").blocks == parse(data, "tmx", "name", "en", "de").blocks
    assert [tag.pair for tag in parse(data, "tmx", "name", "en", "de").blocks[0].tags] == [0, 0, None, 3, 3]
    late = parse(data, "tmx", "name", "en", "")                                 # the target language is not known yet
    assert texts(late) == ["Press this &  that.", "One", "Two"]
    assert upper(late).decode() == changed(TMX, TMX_CHANGES)


# Format: texts that take quadratic time if a pattern goes back, or memory if anything is nested or counted.
HOSTILE = {
    "android": ["<resources><string name='a'>" + content + "</string></resources>" for content in (
        "<![CDATA[" + "<a " * 300_000 + "]]>", "<![CDATA[" + "<!--" * 200_000 + " a]]>", "\\\\" * 300_000 + "a b",
        '"' * 300_000 + "a", "a" + " " * 900_000 + "b")],
    "properties": ["\\" * 1_000_001, "a=" + "\\\n" * 500_000, " \\\n" * 300_000, "a=b\\\n" * 200_000 + "c",
                   "a" * 1_000_000, ":" * 900_000, "a=b \\\n\n" * 100_000, "a=" + "\\\\" * 400_000 + "b c"],
    "xliff": [f"<xliff version='1.2'><trans-unit id='1'><source>{codes}</source></trans-unit></xliff>" for codes in (
        "<bx id='1'/>" * 9_000 + "a" + "<ex id='2'/>" * 9_000, "<g id='1'>a</g>" * 9_000,
        "<g id='1'>" * 900 + "a" + "</g>" * 900, "<bx id='1'/><ex id='1'/>" * 9_000 + "a",
        "<g " + " ".join(f"a{number}=''" for number in range(20_000)) + ">a</g>")],
    "strings": ["\"" * 1_000_001, "/*" * 500_000, "/* *" * 250_000, '"a"' * 300_000, '"' + "\\" * 1_000_000,
                "a=" * 500_000, "a " * 500_000, "//\n" * 300_000 + "a"],
    "yaml": ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a: &a [" + "*a, " * 100_000 + "]", "a: 'b\n" * 50_000,
             "&a " * 300_000, "a: |\n" + "  b\n" * 200_000, "? " * 100_000, "a:\n" + "  one: b c\n" * 50_000],
    "csv": ["en,de\n" + '"' * 1_000_001, "en,de\n" + '"a' * 300_000, "," * 900_000, "en,de\n" + "a b," * 200_000,
            "en,de\n" + "a b\n" * 200_000],
    "xcstrings": ['{"sourceLanguage":"en","strings":' + '{"a":' * 100_000,
                  '{"sourceLanguage":"en","strings":{' + ",".join(
                      f'"a {number}":{{}}' for number in range(100_000)) + "}}"],
    "stringsdict": ["<plist>" + "<dict>" * 900 + "</dict>" * 900 + "</plist>",
                    "<plist><dict>" + "<key>a</key><string>a b</string>" * 100_000
                    + "</dict></plist>", "<plist><dict>" + "<key>a</key>" * 200_000
                    + "</dict></plist>"],
    "resx": ["<root>" + '<data name="&gt;&gt;a"><value>a b</value></data>' * 100_000 + "</root>",
             '<root><data name="' + ".Size" * 200_000 + '"><value>a b</value></data></root>'],
    "markdown": [piece * (40_000 // len(piece)) for piece in (
        "[", "![](", "*a ", "*a_ ", "<a ", "`a``", "> ", "- a\n", "a  \n", "|a", "[a](b", "&", "]", "\\")],
    "srt": [f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n" for text in (
        "<" * 100_000, "{\\" * 50_000, "<i>" * 30_000, "a\n" * 50_000, "-" * 100_000, "\\N-" * 9_999)],
    "ass": [ASS.replace("four", text) for text in ("{\\" * 50_000, "a " * 50_000, "\\N-" * 9_999)],
    "po": ['msgid "a"\n' + '"b"\n' * 100_000 + 'msgstr ""\n', 'msgid "a"\nmsgstr ""\n\n' * 33_000,
           '"' + "a" * 1_000_000, '"' * 1_000_001, "msgid " + '"a" ' * 200_000 + "x", " " * 1_000_000 + "x",
           "domain " + '"" ' * 200_000 + "x", '"' + "Content-Type:" * 8_000],
}


@pytest.mark.slow
@pytest.mark.parametrize(("format", "number"), [(format, number) for format in HOSTILE
                                                for number in range(len(HOSTILE[format]))])
def test_hostile_texts_are_translated_or_refused_in_linear_time(format, number):
    text = HOSTILE[format][number]
    begin = time.process_time()
    try:
        document = parsed(format, text)
        assert unchanged(document) == text.encode()
        upper(document)
    except DocumentError as error:
        assert str(error).startswith("name:")
    assert time.process_time() - begin < 20
