"""Calendars and contacts: a line for each fact."""

from pathlib import Path

from tests.memory3.formats.reading import read


def test_a_calendar_has_a_line_for_each_fact_of_its_events(tmp_path: Path) -> None:
    (tmp_path / "a.ics").write_text(
        "BEGIN:VCALENDAR\r\nX-WR-CALNAME:Family\r\nBEGIN:VTIMEZONE\r\nTZID:Europe/Oslo\r\nDTSTART:19701025T030000\r\n"
        "END:VTIMEZONE\r\nBEGIN:VEVENT\r\nUID:1@x\r\nDTSTART;TZID=Europe/Oslo:20310203T143000\r\n"
        "SUMMARY:Dentist\\, Dr. Okafor\r\nDESCRIPTION:Bring the card.\\nPark behind the hou\r\n se.\r\n"
        'ORGANIZER;CN="Berg, Ida":mailto:ida@x.org\r\nBEGIN:VALARM\r\nDESCRIPTION:Bell\r\nEND:VALARM\r\nEND:VEVENT\r\n'
        "BEGIN:VEVENT\r\nSUMMARY:Fair\r\nDTSTART;VALUE=DATE:20310301\r\nDTEND;VALUE=DATE:20310303\r\nEND:VEVENT\r\n"
        "END:VCALENDAR\r\n"
    )
    document = read(tmp_path / "a.ics")
    assert document.title == "Family"
    assert document.text.split("\n") == [
        "Event: Dentist, Dr. Okafor; Start: 2031-02-03 14:30 (Europe/Oslo)",
        "Event: Dentist, Dr. Okafor; Organizer: Berg, Ida <ida@x.org>",
        "Event: Dentist, Dr. Okafor; Description: Bring the card. Park behind the house.",
        "",
        "Event: Fair; Start: 2031-03-01",
        "Event: Fair; End: 2031-03-02",
    ]


def test_contacts_have_their_numbers_and_addresses_and_no_pictures(tmp_path: Path) -> None:
    encoded = ";CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:"
    (tmp_path / "a.vcf").write_text(
        f"BEGIN:VCARD\nVERSION:2.1\nN{encoded}M=C3=BCller;J=\n=C3=B8rg\nFN{encoded}J=C3=B8rg M=C3=BCller\n"
        "TEL;HOME;VOICE:555-1234\nitem1.EMAIL;type=INTERNET;type=WORK:j@x.org\nADR;TYPE=home:;;Quay 4;Kiruna;;981;\n"
        "BDAY:1980-05-06\nPHOTO;ENCODING=BASE64;JPEG:/9j/4AAQ\n ABAQEASAB\n\nEND:VCARD\n"
        "BEGIN:VCARD\nN:Berg;Ida;;;\nEND:VCARD\n"
    )
    document = read(tmp_path / "a.vcf")
    assert document.notes == ("1 picture in it not read",)
    assert document.text.split("\n") == [
        "Name: Jørg Müller; Phone (home): 555-1234",
        "Name: Jørg Müller; Email (work): j@x.org",
        "Name: Jørg Müller; Address (home): Quay 4, Kiruna, 981",
        "Name: Jørg Müller; Birthday: 1980-05-06",
        "",
        "Full name: Berg, Ida",
    ]
    (tmp_path / "b.ics").write_text("no calendar")
    assert read(tmp_path / "b.ics").text == "no calendar"
