""".NET's resources: which of them are strings for people."""

import pytest
from unchanged_documents import texts, upper

from seq2seq.formats.resx import ResxDocument

FORM = '<data name="&gt;&gt;a.Name"><value>b</value></data>'


def resources(name, value="Top, Left", attributes="", form=""):
    return f'<root>{form}<data name="{name}"{attributes}><value>{value}</value></data></root>'.encode()


@pytest.mark.parametrize(("data", "is_text"), [
    (resources("Title"), True), (resources("a.Text", form=FORM), True), (resources("$this.Text", form=FORM), True),
    (resources("Profile.Name", "Your name"), True), (resources("a.Anchor", form=FORM), False),
    (resources("$this.Font", "Arial, 8pt", form=FORM), False), (resources("&gt;&gt;a.Type", "Some type"), False),
    (resources("a", attributes=' type="System.Drawing.Size, System.Drawing"'), False),
    (resources("a", attributes=' mimetype="application/x-microsoft.net.object.binary.base64"'), False),
    (resources("a", attributes=' xml:space="preserve"'), True), (resources("a", "#ff0000"), False),
    (b"<root><data name='a'><comment>Top left</comment></data></root>", False),
    (b"<root><metadata name='a'><value>Top left</value></metadata></root>", False)])
def test_strings_are_texts_and_other_resources_are_not(data, is_text):
    assert len(texts(ResxDocument(data))) == is_text


def test_the_text_is_escaped_and_keeps_its_margins():
    document = ResxDocument(resources("a", " &lt;b&gt;A &amp;amp; b&lt;/b&gt; <![CDATA[<i>]]>\n"))
    assert texts(document) == ["<b>A &amp; b</b> <i>"]
    assert b"<value> &lt;B&gt;A &amp;AMP; B&lt;/B&gt; &lt;I&gt;\n</value>" in upper(document)


def test_the_ampersand_marks_an_access_key():
    assert ResxDocument(resources("a", "&amp;Open it")).blocks[0].access_keys == "&"
