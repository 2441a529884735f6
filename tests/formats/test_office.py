"""Office documents: text is translated with its formatting, all else keeps its bytes, and archives are not trusted."""

import io
import re
import struct
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from xml.dom import minidom

import docx
import pptx
import pytest
from document_translators import shortened, translated
from hypothesis import assume
from hypothesis import strategies as st
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from property_checks import few_and_many
from unchanged_documents import is_data, texts, upper

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.block import DocumentError
from seq2seq.formats.office import DocxDocument, OdtDocument, PptxDocument
from seq2seq.formats.office_archive import Archive

TYPES = ('<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/word/docu'
         'ment.xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/>'
         '</Types>')
WORD = ('xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" xmlns:r="r" xmlns:m="m"')
OPEN_DOCUMENT = ('xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:text="urn:oasis:names:tc:opendo'
                 'cument:xmlns:text:1.0" xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" xmlns:draw="d" '
                 'xmlns:xlink="x"')


def archive(members, compression=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name, (2001, 2, 3, 5, 7, 11)), content, compression)
    return stream.getvalue()


def saved(document):
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def word(body):
    """Return a DOCX with these contents of the body."""
    return archive([("[Content_Types].xml", TYPES), ("word/document.xml", f"<w:document {WORD}><w:body>{body}"
                                                     "</w:body></w:document>"), ("media/a.png", b"\x00\x01" * 99)])


def open_document(body, **members):
    return archive([("mimetype", "application/vnd.oasis.opendocument.text"), ("content.xml", (
        f"<office:document-content {OPEN_DOCUMENT}><office:body>{body}</office:body></office:document-content>")),
        *members.items()])


def part(data, name):
    """Return a member of an archive that is well-formed XML."""
    content = zipfile.ZipFile(io.BytesIO(data)).read(name)
    minidom.parseString(content)
    return content.decode()


def body(data):
    return part(data, "word/document.xml").split("<w:body>")[1].split("</w:body>")[0]


def run(text, properties=""):
    return f"<w:r>{properties and f'<w:rPr>{properties}</w:rPr>'}<w:t>{text}</w:t></w:r>"


def test_an_unchanged_document_keeps_all_its_bytes():
    document = docx.Document()
    document.add_paragraph("Ein Hund").add_run(" läuft").bold = True
    for data in (saved(document), word(f"<w:p>{run('a')}</w:p>"), word("")):
        source = DocxDocument(data)
        assert source.render(source.blocks, "en") == data


def test_the_formatting_of_runs_is_read_back_by_python_docx():
    document = docx.Document()
    document.add_heading("Ein Titel", 1)
    paragraph = document.add_paragraph("Ein ")
    paragraph.add_run("fetter").bold = True
    paragraph.add_run(" Hund & ")
    paragraph.add_run("schräg").italic = True
    paragraph.add_run("er Tag.\tTab\nZeile")
    document.add_table(1, 1).cell(0, 0).text = "Zelle"
    document.sections[0].header.paragraphs[0].text = "Kopf"
    source = DocxDocument(saved(document))
    assert [block.text for block in source.blocks] == [
        "Ein Titel", "Ein fetter Hund & schräger Tag. Tab Zeile", "Zelle", "Kopf"]
    result = docx.Document(io.BytesIO(translated(source)))
    assert [(one.text, one.bold, one.italic) for one in result.paragraphs[1].runs] == [
        ("EIN ", None, None), ("FETTER", True, None), (" HUND & ", None, None), ("SCHRÄG", None, True),
        ("ER TAG.\tTAB\nZEILE", None, None)]
    assert result.paragraphs[0].style.name == "Heading 1"
    assert result.tables[0].cell(0, 0).text == "ZELLE"
    assert result.sections[0].header.paragraphs[0].text == "KOPF"


def test_a_presentation_without_slides_stays_as_it_is():
    written = io.BytesIO()
    pptx.Presentation().save(written)
    document = PptxDocument(written.getvalue())
    assert document.blocks == []
    assert document.render([], "de") == written.getvalue()


def test_a_run_of_powerpoint_has_one_text_whatever_spaces_are_around_it():
    presentation = pptx.Presentation()
    box = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes.add_textbox(0, 0, 9, 9).text_frame
    box.paragraphs[0].add_run().text = " our plan "
    box.paragraphs[0].add_run().text = "for next year  "
    written = io.BytesIO()
    presentation.save(written)
    slide = zipfile.ZipFile(io.BytesIO(translated(PptxDocument(written.getvalue())))).read("ppt/slides/slide1.xml")
    assert slide.count(b"<a:t>") == slide.count(b"</a:t>") == slide.count(b"<a:r>") == 1
    assert b"<a:t> OUR PLAN FOR NEXT YEAR  </a:t>" in slide


def test_slides_and_notes_are_read_back_by_python_pptx():
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "Ein Titel"
    frame = slide.placeholders[1].text_frame
    frame.text = "Erster\vUmbruch "
    bold = frame.paragraphs[0].add_run()
    bold.text, bold.font.bold = "fett", True
    slide.notes_slide.notes_text_frame.text = "Notiz"
    document = PptxDocument(saved(presentation))
    assert [block.text for block in document.blocks] == ["Ein Titel", "Erster Umbruch fett", "Notiz"]
    result = pptx.Presentation(io.BytesIO(translated(document))).slides[0]
    paragraph = result.placeholders[1].text_frame.paragraphs[0]
    assert paragraph.text == "ERSTER\vUMBRUCH FETT"
    assert [one.text for one in paragraph.runs if one.font.bold] == ["FETT"]
    assert result.notes_slide.notes_text_frame.text == "NOTIZ"


def test_runs_that_differ_only_for_the_spelling_checker_are_one_text():
    document = DocxDocument(word(
        f'<w:p>{run("Ei", "<w:b/><w:lang w:val=&quot;de&quot;/>".replace("&quot;", chr(34)))}<w:proofErr w:type="x"/>'
        f'{run("n T", "<w:b/>")}{run("ag", "<w:b/><w:noProof/>")}</w:p>'))
    block, = document.blocks
    assert (block.text, block.tags) == ("Ein Tag", ())
    assert body(translated(document)) == f"<w:p>{run('EIN TAG', '<w:b/>')}</w:p>"


@pytest.mark.parametrize(("source", "expected"), [
    ('<w:hyperlink r:id="1">{a}</w:hyperlink>{b}', '<w:hyperlink r:id="1">{A}</w:hyperlink>{B}'),
    ("{a}<w:r><w:drawing/></w:r>{b}", "<w:r><w:t>A</w:t><w:drawing/><w:t>B</w:t></w:r>"),
    ("<w:del>{d}</w:del>{a}", "<w:del>{d}</w:del>{A}"), ("<w:ins>{a}</w:ins>{b}", "<w:ins>{A}</w:ins>{B}"),
    ("{a}<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>{b}", "{A}<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>{B}"),
    ('{a}<w:fldSimple w:instr=" PAGE ">{d}</w:fldSimple>{b}', '{A}<w:fldSimple w:instr=" PAGE ">{d}</w:fldSimple>{B}'),
    ('<w:sdt><w:sdtPr/><w:sdtContent>{a}</w:sdtContent></w:sdt>{b}',
     '<w:sdt><w:sdtPr/><w:sdtContent>{A}</w:sdtContent></w:sdt>{B}'),
    ('<w:bookmarkStart w:id="1"/>{a}<w:bookmarkEnd w:id="1"/>',
     '<w:bookmarkStart w:id="1"/>{A}<w:bookmarkEnd w:id="1"/>'),
    ("{a}<w:r><w:noBreakHyphen/></w:r>{b}", "<w:r><w:t>A\u2011B</w:t></w:r>"),
    ("<w:pPr><w:jc/></w:pPr>{a}", "<w:pPr><w:jc/></w:pPr>{A}"),
    ("<w:r><w:t xml:space='preserve'> a</w:t></w:r>", '<w:r><w:t xml:space="preserve"> </w:t><w:t>A</w:t></w:r>'),
])
def test_elements_of_a_paragraph_are_kept(source, expected):
    runs = {letter: run(letter) for letter in "abdAB"}
    result = body(translated(DocxDocument(word(f"<w:p>{source.format(**runs)}</w:p>"))))
    assert result == f"<w:p>{expected.format(**runs)}</w:p>"


@pytest.mark.parametrize("between", ["<w:br/>", "<w:tab/>", "<w:tab/><w:tab/>"])
def test_line_breaks_and_tabs_end_a_sentence(between):
    source = f"<w:p><w:r><w:t>Ein Hund</w:t>{between}<w:t>Eine Katze</w:t></w:r></w:p>"
    document = DividedDocument(DocxDocument(word(source)))
    assert document.sentences == ["Ein Hund", "Eine Katze"]
    expected = source.replace("Ein Hund", "A dog").replace("Eine Katze", "A cat")
    assert body(document.join(["A dog", "A cat"], "en")) == expected
    assert body(document.join(document.sentences, "en")) == source


def test_a_price_with_formatting_and_a_no_break_space_is_no_sentence():
    source = (f"<w:p>{run('Der Preis ist hoch.')}<w:r><w:br/></w:r>{run('10' + chr(160))}{run('000', '<w:b/>')}"
              f"{run(' €')}</w:p>")
    document = DividedDocument(DocxDocument(word(source)))
    assert document.sentences == ["Der Preis ist hoch."]
    found = body(document.join(["The price is high."], "en", lambda pairs: [None] * len(pairs)))
    assert "The price is high." in found and f"10{chr(160)}</w:t>" in found and ">000</w:t>" in found


def field(instruction, result, end='<w:r><w:fldChar w:fldCharType="end"/></w:r>'):
    return ('<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>' + instruction + '</w:instrText></w:r>'
            '<w:r><w:fldChar w:fldCharType="separate"/></w:r>' + result + end)


def test_fields_are_kept_and_the_text_of_links_is_translated():
    page = field("PAGE", run("drei"))
    document = DocxDocument(word(f"<w:p>{run('a')}{page}{run('b')}</w:p>"))
    assert [tag.kind for tag in document.blocks[0].tags] == ["alone"]
    assert "<w:t>drei</w:t>" in body(translated(document))
    document = DocxDocument(word(f"<w:p>{run('a ')}{field(' HYPERLINK &quot;x&quot;', run('b'))}{run(' c')}</w:p>"))
    assert document.blocks[0].text == "a b c"
    assert [tag.kind for tag in document.blocks[0].tags] == ["open", "close"]
    link = field(" HYPERLINK &quot;x&quot;", run("B")).replace("</w:r><w:r>", "").removeprefix("<w:r>")
    assert link.removesuffix("</w:r>") in body(translated(document))


def test_parts_of_a_field_that_ends_in_another_paragraph_keep_their_order():
    parts = field("TOC", run("a"), "") + run("b")
    document = DocxDocument(word(f"<w:p>{run('x')}{parts}</w:p><w:p>{run('y')}</w:p>"))
    block = document.blocks[0]
    turned = replace(block, text="new text", tags=tuple(replace(tag, position=index) for index, tag in
                                                        enumerate(reversed(block.tags))))
    result = body(document.render([turned, document.blocks[1]], "en"))
    assert result.index("begin") < result.index("TOC") < result.index("separate")


def test_text_boxes_are_blocks_of_their_own_and_their_fallback_stays():
    box = (f"<w:r><mc:AlternateContent><mc:Choice><w:txbxContent><w:p>{run('innen')}</w:p></w:txbxContent></mc:Choice>"
           f"<mc:Fallback><w:p>{run('innen')}</w:p></mc:Fallback></mc:AlternateContent></w:r>")
    document = DocxDocument(word(f"<w:p>{run('vor ')}{box}{run('nach')}</w:p>"))
    assert [block.text for block in document.blocks] == ["vor nach", "innen"]
    result = body(translated(document))
    assert [result.count(text) for text in ("VOR ", "NACH", "<w:t>INNEN</w:t>", "<w:t>innen</w:t>")] == [1, 1, 1, 1]
    inner_only = body(document.render([document.blocks[0], replace(document.blocks[1], text="neu")], "en"))
    assert inner_only == f"<w:p>{run('vor ')}{box.replace('innen', 'neu', 1)}{run('nach')}</w:p>"


def test_tags_in_another_order_give_well_formed_documents():
    document = DocxDocument(word(f"<w:p>{run('a ')}{run('b', '<w:b/>')}{run(' c ')}{run('d', '<w:i/>')}"
                                 '<w:hyperlink r:id="1">' + run(" e ") + run("f", "<w:b/>")
                                 + f"</w:hyperlink>{run(' g')}</w:p>"))
    block, = document.blocks
    by_pair = {}
    for tag in block.tags:
        by_pair.setdefault(tag.pair, []).append(tag)
    nested = [pair[0] for pair in by_pair.values()] + [pair[1] for pair in reversed(by_pair.values())]
    result = body(document.render([replace(block, text="x y", tags=tuple(replace(tag, position=1) for tag in nested))],
                                  "en"))
    assert result.count("<w:hyperlink") == 1 and result.startswith("<w:p><w:r><w:t>x</w:t></w:r>")


def test_characters_that_xml_does_not_allow_are_left_out():
    document = DocxDocument(word(f"<w:p>{run('a')}</w:p>"))
    assert run("b&amp;c") in body(translated(document, lambda text: "b\x00\x0b&\ud800c"))


@pytest.mark.parametrize(("language", "style"), [
    ("de", '<w:lang w:val="de-DE" w:eastAsia="zh-CN"/>'), ("pt-BR", '<w:lang w:val="pt-BR" w:eastAsia="zh-CN"/>'),
    ("ar", '<w:lang w:val="en-US" w:eastAsia="zh-CN" w:bidi="ar-EG"/>'),
    ("ja", '<w:lang w:val="en-US" w:eastAsia="ja-JP"/>')])
def test_the_spelling_checker_of_word_gets_the_target_language(language, style):
    styles = (f'<w:styles {WORD}><w:rPr><w:lang w:val="en-US" w:eastAsia="zh-CN"/></w:rPr>'
              '<w:rPr><w:lang w:val="fr-FR"/></w:rPr></w:styles>')
    british = '<w:lang w:val="en-GB"/>'
    runs = f"<w:p>{run('A dog', british)}</w:p><w:p>{run('7', british)}</w:p>"
    source = archive([("[Content_Types].xml", TYPES), ("word/document.xml", f"<w:document {WORD}><w:body>{runs}"
                      "</w:body></w:document>"), ("word/styles.xml", styles)])
    document = DocxDocument(source, "en", language)
    assert document.render(document.blocks, language) == source
    result = document.render([replace(block, text="EIN HUND") for block in document.blocks], language)
    assert body(result) == f"<w:p>{run('EIN HUND')}</w:p><w:p>{run('7', british)}</w:p>"
    assert part(result, "word/styles.xml") == styles.replace('<w:lang w:val="en-US" w:eastAsia="zh-CN"/>', style)


def test_the_spelling_checker_of_other_programs_gets_the_target_language():
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "A dog"
    document = PptxDocument(saved(presentation), "en", "pt-BR")
    result = document.render([replace(block, text="UM CÃO") for block in document.blocks], "pt-BR")
    assert part(result, "ppt/presentation.xml").count('<a:defRPr lang="pt-BR"') > 0
    assert 'lang="en-US"' not in part(result, "ppt/presentation.xml")
    styles = (f'<office:styles {OPEN_DOCUMENT} xmlns:fo="f" xmlns:style="s"><style:text-properties {{}}/>'
              '</office:styles>')
    named = styles.format('fo:language="en" fo:country="US"')
    document = OdtDocument(open_document("<text:p>A dog</text:p>", **{"styles.xml": named}), "en", "he")
    result = document.render([replace(block, text="DOG") for block in document.blocks], "he")
    assert part(result, "styles.xml") == styles.format(
        'fo:language="en" fo:country="US" style:language-complex="he" style:country-complex="IL"')


def test_open_document_text_keeps_spans_spaces_and_notes():
    source = ('<text:tracked-changes><text:p>alt</text:p></text:tracked-changes>'
              '<text:h text:outline-level="1">Titel</text:h>'
              '<text:p>Ein <text:span text:style-name="T1">fetter\n Hund</text:span><text:s text:c="2"/>da'
              '<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Fuß</text:p></text:note-body>'
              '</text:note><text:line-break/>neu</text:p>')
    document = OdtDocument(open_document(source))
    assert [block.text for block in document.blocks] == ["Titel", "Ein fetter Hund  da neu", "Fuß"]
    assert document.render(document.blocks, "en") == open_document(source)
    expected = source.replace("Titel", "TITEL").replace("Ein", "EIN").replace("fetter\n Hund", "FETTER HUND").replace(
        '<text:s text:c="2"/>da', ' <text:s text:c="1"/>DA').replace("Fuß", "FUSS").replace("neu", "NEU")
    assert f"<office:body>{expected}</office:body>" in part(translated(document), "content.xml")


def test_cells_of_numbers_and_formulas_are_not_translated():
    cells = ('<table:table-cell office:value-type="float"><text:p>12 kg</text:p></table:table-cell><table:table-cell '
             'table:formula="of:=A1" office:value-type="string"><text:p>b</text:p></table:table-cell>'
             '<table:table-cell office:value-type="string"><text:p>c</text:p></table:table-cell>')
    assert [block.text for block in OdtDocument(open_document(cells)).blocks] == ["c"]


@pytest.mark.parametrize("types", [
    TYPES.replace('Override PartName="/word/document.xml"', 'Default Extension="xml"'),     # as the Open XML SDK writes
    TYPES.replace("/word/document.xml", "/Word/Document.xml")])
def test_parts_are_found_by_the_type_of_their_extension_and_whatever_the_case_of_their_names(types):
    document = DocxDocument(archive([
        ("[Content_Types].xml", types),
        ("word/document.xml", f"<w:document {WORD}><w:body><w:p>{run('a')}</w:p></w:body></w:document>")]))
    assert body(translated(document)) == f"<w:p>{run('A')}</w:p>"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_other_members_keep_bytes_order_and_times(compression):
    members = [(name, (name * 99).encode()) for name in ("a", "b/c", "ä", "d")]
    data = archive(members, compression)
    result = Archive(data).replace({"b/c": b"new" * 77})
    with zipfile.ZipFile(io.BytesIO(result)) as new, zipfile.ZipFile(io.BytesIO(data)) as old:
        assert new.testzip() is None
        assert new.namelist() == old.namelist()
        assert [new.read(name) for name, _ in members] == [b"new" * 77 if name == "b/c" else content
                                                           for name, content in members]
        for one, other in zip(new.infolist(), old.infolist(), strict=True):
            assert (one.date_time, one.compress_type, one.external_attr) == (other.date_time, other.compress_type,
                                                                           other.external_attr)


def test_members_with_their_size_after_the_data_are_replaced():
    class Stream(io.RawIOBase):
        """File that cannot be rewound, so that sizes are written after the data."""

        data = b""

        def writable(self):
            return True

        def write(self, part):
            self.data += bytes(part)
            return len(part)

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("a", "b"):
            with file.open(name, "w") as member:
                member.write(b"old")
    with zipfile.ZipFile(io.BytesIO(Archive(stream.data).replace({"a": b"new!"}))) as file:
        assert file.testzip() is None
        assert [file.read(name) for name in ("a", "b")] == [b"new!", b"old"]


def with_header(data, offset, form, value, marker=b"PK\x01\x02"):
    """Return an archive with a changed field of its first directory entry."""
    changed = bytearray(data)
    struct.pack_into(form, changed, data.index(marker) + offset, value)
    return bytes(changed)


SMALL = word("<w:p/>")


@pytest.mark.parametrize("data", [
    b"", SMALL[:200], with_header(SMALL, 24, "<I", 2**31), with_header(SMALL, 8, "<H", 1),
    with_header(SMALL, 42, "<I", 5), with_header(SMALL, 24, "<I", 7),
    archive([("[Content_Types].xml", TYPES)], zipfile.ZIP_BZIP2),
    archive([(str(number), "") for number in range(10_001)], zipfile.ZIP_STORED)], ids=[
    "empty", "cut off", "too large", "encrypted", "wrong place", "wrong size", "another method", "many members"])
def test_damaged_and_hostile_archives_are_refused(data):
    with pytest.raises(DocumentError):
        DocxDocument(data)


@few_and_many(10, 5000, st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=4))
def test_archives_with_changed_bytes_are_refused_or_read(changes):
    damaged = bytearray(SMALL)
    for place, value in changes:
        damaged[place] = value
    with suppress(DocumentError):
        translated(DocxDocument(bytes(damaged)))


RUNS = st.lists(st.tuples(st.text("ab &<\u00e4", max_size=5), st.booleans(), st.booleans(), st.booleans()), max_size=7)


@few_and_many(4, 500, RUNS, st.sampled_from([str.upper, shortened]))
def test_every_character_keeps_its_formatting(runs, translate):
    """Translate a paragraph of these runs, and read its text and formatting back."""
    document = docx.Document()
    paragraph = document.add_paragraph()
    for text, bold, italic, small in runs:
        one = paragraph.add_run(text)
        one.bold, one.italic, one.font.small_caps = bold, italic, small or None
    source = DocxDocument(saved(document))
    assume(not any(map(is_data, source.blocks)))
    result = docx.Document(io.BytesIO(translated(source, translate))).paragraphs[0]
    if translate is not str.upper and source.blocks:
        assert "".join(result.text.split()) == "".join(translate("".join(text for text, *_ in runs).strip()).split())
        return
    assert result.text.upper() == "".join(text for text, *_ in runs).upper()
    assert [(character.upper(), one.bold, one.italic, one.font.small_caps) for one in result.runs
            for character in one.text if character.strip()] == [
        (character.upper(), bold, italic, small or None)
        for text, bold, italic, small in runs for character in text if character.strip()]


@pytest.mark.slow
def test_five_thousand_paragraphs_take_seconds():
    paragraph = f"<w:p>{run('Ein ')}{run('fetter', '<w:b/>')}{run(' Hund')}</w:p>"
    data = word("".join(paragraph.replace("Hund", f"Hund {number}") for number in range(5_000)))
    begin = time.perf_counter()
    assert body(translated(DocxDocument(data))).count("FETTER") == 5_000
    assert time.perf_counter() - begin < 10


DRAWING = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:c="c" xmlns:dgm="d" xmlns:dsp="e"'
CHART = (f'<c:chartSpace {DRAWING}><c:title><a:p><a:pPr/><a:r><a:t>Sales of </a:t></a:r><a:r><a:rPr b="1"/><a:t>dogs'
         "</a:t></a:r></a:p></c:title><c:ser><c:tx><c:strRef><c:f>Sheet1!$B$1</c:f><c:strCache><c:pt><c:v>Big  dogs "
         "&amp; co</c:v></c:pt></c:strCache></c:strRef></c:tx><c:val><c:numCache><c:formatCode>General</c:formatCode>"
         "<c:pt><c:v>4.3</c:v></c:pt></c:numCache></c:val></c:ser></c:chartSpace>")
SMART_ART = (f"<dgm:dataModel {DRAWING}><dgm:pt><dgm:t><a:p><a:r><a:t>One step</a:t></a:r></a:p></dgm:t></dgm:pt>"
             "</dgm:dataModel>")
SHAPES = f"<dsp:drawing {DRAWING}><dsp:txBody><a:p><a:r><a:t>One step</a:t></a:r></a:p></dsp:txBody></dsp:drawing>"
PREFIX = "application/vnd.openxmlformats-officedocument.drawingml."


def test_charts_and_smart_art_of_word_are_translated():
    types = TYPES.replace("</Types>", (
        f'<Override PartName="/word/charts/chart1.xml" ContentType="{PREFIX}chart+xml"/>'
        f'<Override PartName="/word/diagrams/data1.xml" ContentType="{PREFIX}diagramData+xml"/>'
        '<Override PartName="/word/diagrams/drawing1.xml" '
        'ContentType="application/vnd.ms-office.drawingml.diagramDrawing+xml"/></Types>'))
    parts = {"word/charts/chart1.xml": CHART, "word/diagrams/data1.xml": SMART_ART,
             "word/diagrams/drawing1.xml": SHAPES}
    data = archive([("[Content_Types].xml", types), ("word/document.xml", (
        f"<w:document {WORD}><w:body><w:p>{run('A dog')}</w:p></w:body></w:document>")), *parts.items()])
    divided = DividedDocument(DocxDocument(data), once=True)
    assert divided.sentences == ["A dog", "Sales of dogs", "Big  dogs & co", "One step"]
    assert divided.join(divided.sentences, "de") == data
    result = divided.join(list(map(str.upper, divided.sentences)), "de")
    assert "A DOG" in body(result)
    assert part(result, "word/charts/chart1.xml") == CHART.replace("Sales of ", "SALES OF ").replace(
        ">dogs<", ">DOGS<").replace("Big  dogs &amp; co", "BIG  DOGS &amp; CO")
    for name, source in [*parts.items()][1:]:
        assert part(result, name) == source.replace("One step", "ONE STEP")


def test_charts_of_powerpoint_are_read_back_by_python_pptx():
    presentation = pptx.Presentation()
    chart_data = CategoryChartData()
    chart_data.categories = ["Red dogs", "Blue cats", "2019"]
    chart_data.add_series("First series", (1, 2, 3))
    chart = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes.add_chart(
        XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 99, 99, chart_data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "Dogs and cats"
    divided = DividedDocument(PptxDocument(saved(presentation)))
    assert sorted(divided.sentences) == ["Blue cats", "Dogs and cats", "First series", "Red dogs"]
    result = divided.join(list(map(str.upper, divided.sentences)), "de")
    read = pptx.Presentation(io.BytesIO(result)).slides[0].shapes[0].chart
    assert [*read.plots[0].categories] == ["RED DOGS", "BLUE CATS", "2019"]
    assert (read.chart_title.text_frame.text, read.series[0].name) == ("DOGS AND CATS", "FIRST SERIES")
    assert [*read.series[0].values] == [1, 2, 3]


def test_titles_of_charts_in_open_document_are_translated():
    chart = f"<office:document-content {OPEN_DOCUMENT}><text:p>Two dogs</text:p></office:document-content>"
    data = open_document("<text:p>A dog</text:p>", **{"Object 1/content.xml": chart})
    document = OdtDocument(data)
    assert texts(document) == ["A dog", "Two dogs"]
    assert part(upper(document), "Object 1/content.xml") == chart.replace("Two dogs", "TWO DOGS")


@pytest.mark.parametrize("hidden", [
    "<w:vanish/>", '<w:b/><w:vanish w:val="1"/>', "<w:vanish w:val='true'/>", '<w:vanish w:val="on" />'])
def test_hidden_text_stays_and_takes_no_visible_words_with_it(hidden):
    tab = f"<w:r><w:rPr>{hidden}</w:rPr><w:tab/></w:r>"
    data = word(f"<w:p>{run('A red ')}{tab}{run('secret note ', hidden)}{run('dog sleeps.')}</w:p>")
    divided = DividedDocument(DocxDocument(data))
    assert divided.sentences == ["A red dog sleeps."]
    result = body(divided.join(["Ein roter Hund schläft."], "de"))
    assert f"<w:rPr>{hidden}</w:rPr><w:tab/><w:t>secret note </w:t></w:r>" in result
    assert "".join(re.findall("<w:t[^>]*>([^<]*)", result)).replace("secret note ", "") == "Ein roter Hund schläft."


@pytest.mark.parametrize("visible", ['<w:vanish w:val="0"/>', "<w:vanish w:val='false'/>", "<w:specVanish/>", "<w:b/>"])
def test_text_that_is_not_hidden_is_translated(visible):
    data = word(f"<w:p>{run('A red ')}{run('dog', visible)}{run(' sleeps.')}</w:p>")
    assert DividedDocument(DocxDocument(data)).sentences == ["A red dog sleeps."]
