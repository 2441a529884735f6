<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" sourcelanguage="en" language="de">
<context>
    <name>MainWindow</name>
    <message>
        <location filename="../main.cpp" line="12"/>
        <source>&amp;Open &quot;file&quot;, it&apos;s
new<byte value="x1b"/></source>
        <translation type="unfinished">&amp;OPEN &quot;FILE&quot;, IT&apos;S
NEW<byte value="x1b"/></translation>
    </message>
    <message>
        <source>Close</source>
        <translation>Schließen</translation>
    </message>
    <message numerus="yes">
        <source>%n file(s)</source>
        <translation type="unfinished"><numerusform>%N FILE(S)</numerusform><numerusform>%N FILE(S)</numerusform></translation>
    </message>
    <message>
        <source>Save</source>
        <translation type="unfinished">SAVE</translation>
    </message>
    <message><source>Begun</source><translation type="unfinished">Begonnen</translation></message>
    <message><source>Gone</source><translation type="vanished"></translation></message>
    <message><source>Older</source><translation type="obsolete"></translation></message>
</context>
</TS>
