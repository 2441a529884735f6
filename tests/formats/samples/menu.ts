<?xml version="1.0" encoding="utf-8"?>
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
