"""ABC against notes written down by hand, MIDI against a reader of the file format written here."""

from __future__ import annotations

import gzip
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.core.errors import BadInput
from sonde.data.melody import TICKS, TUNES, Note, intervals, midi, notes, signature


def heard(file: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """(pitch, begin, end) of each note in ticks and the microseconds of a quarter, by the standard's own rules."""
    assert file[:14] == b"MThd\x00\x00\x00\x06\x00\x00\x00\x01" + TICKS.to_bytes(2, "big") and file[14:18] == b"MTrk"
    track = file[22:]
    assert int.from_bytes(file[18:22], "big") == len(track)
    at = clock = tempo = 0
    on: dict[int, int] = {}
    events = []
    while True:
        delta = 0
        while True:
            byte = track[at]
            at += 1
            delta = delta << 7 | byte & 127
            if byte < 128:
                break
        clock += delta
        status, at = track[at], at + 1
        if status == 0xFF:
            kind, size = track[at], track[at + 1]
            body, at = track[at + 2 : at + 2 + size], at + 2 + size
            if kind == 0x2F:
                assert at == len(track) and not on
                return events, tempo
            assert kind == 0x51
            tempo = int.from_bytes(body, "big")
        elif status == 0xC0:
            at += 1
        else:
            pitch, speed = track[at], track[at + 1]
            at += 2
            assert status in (0x80, 0x90) and pitch < 128 and speed < 128
            if status == 0x90:
                assert pitch not in on
                on[pitch] = clock
            else:
                events.append((pitch, on.pop(pitch), clock))


@pytest.mark.parametrize(
    ("abc", "pitches", "eighths"),
    [
        ("CDEFGABcdefgab", [60, 62, 64, 65, 67, 69, 71, 72, 74, 76, 77, 79, 81, 83], [1] * 14),
        ("C,c'^C_E=F^^F__B", [48, 84, 61, 63, 65, 67, 69], [1] * 7),
        ("C2C/C/2C3/2C//C4", [60] * 6, [2, 0.5, 0.5, 1.5, 0.25, 4]),
        ("K:D\nFCf=FF|F", [66, 61, 78, 65, 65, 66], [1] * 6),  # a sign holds for its octave to the end of the bar
        ("K:D\n=Ff", [65, 78], [1, 1]),
        ("K:Bb\nBE_A", [70, 63, 68], [1] * 3),
        ("K:Edor\nFC", [66, 61], [1, 1]),
        ('L:1/4\n"Am"C [1 D {ef}E !f! F "C"z2 % G A', [60, 62, 64, 65, None], [2, 2, 2, 2, 4]),
        ("(3CDE F", [60, 62, 64, 65], [2 / 3] * 3 + [1]),
        ("C>DE<F", [60, 62, 64, 65], [1.5, 0.5, 0.5, 1.5]),
        ("C2-|C C", [60, 60], [3, 1]),
        ("[CEG]2[M:3/4]D", [60, 62], [2, 1]),
        ("M:2/4\nC", [60], [0.5]),
        ("M:C\nL:1/4\nC", [60], [2]),
        ("T:Bed and Cabbage\nw:Bad\nC", [60], [1]),
        ("K:nonsense\nM:x\nL:0/0\n]]((:>", [], []),
    ],
)
def test_abc_is_read_as_it_is_played(abc, pitches, eighths):
    melody = notes(abc)
    assert [note.pitch for note in melody] == pitches
    assert [float(8 * note.length) for note in melody] == pytest.approx(eighths)


def test_keys_have_the_signs_of_the_circle_of_fifths():
    assert signature("G") == {"F": 1} and signature("F") == {"B": -1} and signature("C") == signature("Am") == signature("?") == {}
    assert signature("F#m") == signature("A major") == {"F": 1, "C": 1, "G": 1} and signature("Cb") == dict.fromkeys("FCGDAEB", -1)


def test_midi_plays_every_note_when_it_should():
    melody = [Note(60, Fraction(1, 4)), Note(None, Fraction(1, 8)), *[Note(67, Fraction(1, 12))] * 3, Note(67, Fraction(9, 1))]
    events, tempo = heard(midi(melody, tempo=90))
    assert events == [(60, 0, 480), (67, 720, 880), (67, 880, 1040), (67, 1040, 1200), (67, 1200, 1200 + 36 * 480)]
    assert tempo == 666_667


@given(st.lists(st.tuples(st.none() | st.integers(0, 127), st.fractions(Fraction(1, 90), 70, max_denominator=96)), max_size=30))
def test_midi_of_any_melody_is_a_good_file(pairs):
    melody = [Note(*pair) for pair in pairs]
    if all(note.pitch is None for note in melody):
        with pytest.raises(BadInput, match="without a note"):
            midi(melody)
        return
    events, _ = heard(midi(melody))
    assert [pitch for pitch, _, _ in events] == [note.pitch for note in melody if note.pitch is not None]
    at, ends = Fraction(0), []
    for note in melody:
        at += note.length
        ends += [round(at * 1920)] if note.pitch is not None else []
    assert [end for _, _, end in events] == ends


@given(st.text(alphabet="ABCdefg_^=,'0123456789/|:[](){}<>-\"!%KLMXzx \n", max_size=60))
def test_any_text_can_be_read(text):
    for note in notes(text):
        assert note.length > 0 and (note.pitch is None or 0 <= note.pitch <= 127)


def test_intervals_are_steps_from_note_to_note():
    share = intervals(notes("CDEz_E"), notes("Cc''"))
    assert share.sum() == pytest.approx(1) and share[12 + 2] == 0.5 and share[12 - 1] == share[24] == 0.25
    assert np.array_equal(intervals([]), np.zeros(25))


def test_bundled_tunes_fill_their_bars():
    for tune in TUNES:
        melody = notes(tune)
        meter = Fraction(tune.split("M:")[1].split("\n")[0])
        assert len(melody) > 20 and (sum(note.length for note in melody) / meter).denominator == 1, tune


def test_the_nottingham_tunes_can_be_read(data_folder):
    path = data_folder / "music" / "nottingham-abc.txt.gz"
    if not path.is_file():
        pytest.skip("no Nottingham tunes")
    tunes = gzip.decompress(path.read_bytes()).decode().split("X:")[1:60]
    melodies = [notes("X:" + tune) for tune in tunes]
    assert all(len(melody) > 20 for melody in melodies)
    assert all(50 <= note.pitch <= 95 for melody in melodies for note in melody if note.pitch is not None)
    assert all(heard(midi(melody))[0] for melody in melodies)
