"""Melodies: read from ABC text (abcnotation.com, standard 2.1), written as a MIDI file that any player opens.

A melody is a list of notes.  Chord names, words and ornaments are ignored, repeats are played once, and of a chord only the first
note; a sampled text may be wrong anywhere, so everything that is not a note is ignored too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, NamedTuple

import numpy as np

from ..core.errors import BadInput
from ..core.options import Range, checked

TICKS = 480
"""MIDI ticks of a quarter note"""
WIDEST = 12
"""semitones; larger intervals count as this one"""

LETTERS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
SHARPENED = "FCGDAEB"
"""letters in the order in which keys sharpen them; keys flatten them in reverse order"""
MODES = {"": 0, "maj": 0, "ion": 0, "m": -3, "min": -3, "aeo": -3, "dor": -2, "phr": -4, "lyd": 1, "mix": -1, "loc": -5}
TUPLETS = {"2": Fraction(3, 2), "3": Fraction(2, 3), "4": Fraction(3, 4), "6": Fraction(1, 3)}
SIGNS = {"^^": 2, "^": 1, "=": 0, "_": -1, "__": -2}

TUNES = tuple(
    f"X:1\nT:{title}\nM:{meter}\nL:{unit}\nK:{key}\n{body}\n"
    for title, meter, unit, key, body in (
        ("Ode to Joy", "4/4", "1/4", "C", "EEFG|GFED|CCDE|E3/2D/2D2|EEFG|GFED|CCDE|D3/2C/2C2|\n"
         "DDEC|DE/2F/2EC|DE/2F/2ED|CDG,2|EEFG|GFED|CCDE|D3/2C/2C2|"),
        ("Twinkle, Twinkle", "4/4", "1/4", "C", "CCGG|AAG2|FFEE|DDC2|GGFF|EED2|GGFF|EED2|CCGG|AAG2|FFEE|DDC2|"),
        ("Frere Jacques", "4/4", "1/4", "C", "CDEC|CDEC|EFG2|EFG2|G/2A/2G/2F/2EC|G/2A/2G/2F/2EC|CG,C2|CG,C2|"),
        ("Mary Had a Little Lamb", "4/4", "1/4", "C", "EDCD|EEE2|DDD2|EGG2|EDCD|EEEE|DDED|C4|"),
        ("London Bridge", "4/4", "1/4", "C", "G3/2A/2GF|EFG2|DEF2|EFG2|G3/2A/2GF|EFG2|D2G2|EC3|"),
        ("Au clair de la lune", "4/4", "1/4", "C", "CCCD|E2D2|CEDD|C4|CCCD|E2D2|CEDD|C4|\nDDDD|A,2A,2|DCB,A,|G,4|CCCD|E2D2|CEDD|C4|"),
        ("Row, Row, Row Your Boat", "6/8", "1/8", "C", "C3C3|C2DE3|E2DE2F|G6|cccGGG|EEECCC|G2FE2D|C6|"),
        ("Lightly Row", "4/4", "1/4", "C", "GEE2|FDD2|CDEF|GGG2|GEEE|FDDD|CEGG|E4|\nDDDD|DEF2|EEEE|EFG2|GEEE|FDDD|CEGG|C4|"),
        ("Jingle Bells", "4/4", "1/4", "C", "EEE2|EEE2|EGC3/2D/2|E4|FFF3/2F/2|FEEE/2E/2|EDDE|D2G2|\n"
         "EEE2|EEE2|EGC3/2D/2|E4|FFF3/2F/2|FEEE/2E/2|GGFD|C4|"),
        ("Skip to My Lou", "4/4", "1/4", "G", "BBGG|BBd2|AAFF|AAc2|BBGG|BBd2|ABcA|G2G2|"),
    )
)  # fmt: skip
"""melodies in the public domain, as ABC"""

LENGTH = r"\d*(?:/+\d*)?"
NOTE = rf"(?:\^\^?|__?|=)?[A-Ga-g][,']*{LENGTH}"
CHORD = re.compile(rf"\[({NOTE})[^]|\n]*\]")
TOKEN = re.compile(
    rf"""(?P<field>^[A-Za-z]:[^\n]*|\[[A-Za-z]:[^]\n]*\])
    | (?P<text>"[^"\n]*"?|![^!\n]*!|{{[^}}\n]*}}?|%[^\n]*)
    | \((?P<tuplet>[2346])
    | (?P<bar>[|:])
    | (?P<broken><+|>+)
    | (?P<note>(?P<sign>\^\^?|__?|=)?(?P<letter>[A-Ga-gzx])(?P<octave>[,']*)(?P<length>{LENGTH})(?P<tie>-)?)
    """,
    re.VERBOSE | re.MULTILINE,
)


class Note(NamedTuple):
    """A pitch as MIDI counts them (60 is middle C), or None for a rest; its length in whole notes."""

    pitch: int | None
    length: Fraction


def notes(abc: str) -> list[Note]:
    """The notes of a tune in ABC."""
    melody: list[Note] = []
    unit: Fraction | None = None
    usual, factor, scaled, tied = Fraction(1, 8), Fraction(1), 0, False
    key, local, next_factor = signature("C"), dict[str, int](), Fraction(1)
    for token in TOKEN.finditer(CHORD.sub(r"\1", abc)):
        if field := token["field"]:
            name, _, value = field.strip("[]").partition(":")
            if name == "K":
                key, local = signature(value), {}
            elif name == "L":
                unit = _fraction(value) or unit
            elif name == "M":
                usual = Fraction(1, 16) if 0 < _fraction(value) < Fraction(3, 4) else Fraction(1, 8)
        elif many := token["tuplet"]:
            factor, scaled = TUPLETS[many], int(many)
        elif token["bar"]:
            local = {}  # an accidental holds to the end of its bar
        elif (broken := token["broken"]) and melody:
            short = Fraction(1, 2 ** min(len(broken), 3))
            this, next_factor = (2 - short, short) if broken[0] == ">" else (short, 2 - short)
            melody[-1] = Note(melody[-1].pitch, melody[-1].length * this)
        elif token["note"]:
            length = (unit or usual) * _times(token["length"]) * next_factor * (factor if scaled else 1)
            pitch = _pitch(token, key, local)
            if tied and melody[-1].pitch == pitch:
                melody[-1] = Note(pitch, melody[-1].length + length)
            else:
                melody.append(Note(pitch, length))
            next_factor, scaled, tied = Fraction(1), max(scaled - 1, 0), bool(token["tie"])
    return melody


def signature(key: str) -> dict[str, int]:
    """Semitones that a key adds to each letter: {'F': 1, 'C': 1} for D; an unknown key is C."""
    match = re.match(r"\s*([A-G])([#b]?)\s*([A-Za-z]*)", key)
    if match is None:
        return {}
    tonic, sign, mode = match.groups()
    sharps = SHARPENED.index(tonic) - 1 + {"#": 7, "b": -7, "": 0}[sign] + MODES.get(mode.lower()[:3], 0)
    return dict.fromkeys(SHARPENED[:sharps], 1) if sharps > 0 else dict.fromkeys(SHARPENED[sharps:], -1) if sharps else {}


@checked
def midi(melody: Sequence[Note], tempo: Annotated[float, Range(4, 1000)] = 120.0, program: Annotated[int, Range(0, 127)] = 73) -> bytes:
    """A standard MIDI file of format 0: one track with one voice.

    Args:
        tempo: quarter notes per minute
        program: General MIDI instrument, counted from 0; 73 is a flute
    """
    if not any(note.pitch is not None for note in melody):
        raise BadInput("a melody without a note cannot be played", where="midi", fix="give at least one note")
    events = [b"\x00\xff\x51\x03" + round(60_000_000 / tempo).to_bytes(3, "big"), b"\x00\xc0" + bytes([program])]
    at, last_tick = Fraction(0), 0  # rounding each end, not each length, does not add up errors
    for pitch, length in melody:
        begins, ends = round(at * 4 * TICKS), round((at + length) * 4 * TICKS)
        if pitch is not None:
            events += [
                _varint(begins - last_tick) + bytes([0x90, pitch, 90]),
                _varint(ends - begins) + bytes([0x80, pitch, 0]),
            ]
            last_tick = ends
        at += length
    track = b"".join([*events, b"\x00\xff\x2f\x00"])
    head = b"MThd" + (6).to_bytes(4, "big") + b"".join(n.to_bytes(2, "big") for n in (0, 1, TICKS))
    return head + b"MTrk" + len(track).to_bytes(4, "big") + track


def intervals(*melodies: Sequence[Note]) -> np.ndarray:
    """Frequency of each interval from a note to the next, of -12 to 12 semitones (25,); wider ones count as an octave."""
    counts = np.zeros(2 * WIDEST + 1)
    for melody in melodies:
        pitches = np.array([note.pitch for note in melody if note.pitch is not None])
        np.add.at(counts, np.clip(np.diff(pitches), -WIDEST, WIDEST).astype(int) + WIDEST, 1)
    return counts / max(counts.sum(), 1)


def _pitch(token: re.Match[str], key: dict[str, int], local: dict[str, int]) -> int | None:
    """The pitch of a note; its own accidental comes first, then an earlier one in the bar, then that of the key."""
    letter = token["letter"]
    if letter in "zx":
        return None
    name = letter.upper() + token["octave"] + ("'" if letter.islower() else "")
    if token["sign"]:
        local[name] = SIGNS[token["sign"]]
    octave = token["octave"].count("'") - token["octave"].count(",") + letter.islower()
    pitch = 60 + LETTERS[letter.upper()] + 12 * octave + local.get(name, key.get(letter.upper(), 0))
    return min(max(pitch, 0), 127)


def _times(text: str) -> Fraction:
    """A length as ABC writes it: '' is 1, '3' 3, '/' a half, '//' a quarter, '3/2' one and a half."""
    over, slash, under = text.partition("/")
    down = 2 ** (1 + under.count("/")) if slash and not under.strip("/") else int(under.strip("/") or 1)
    return Fraction(min(int(over or 1) or 1, 64), min(down or 1, 64))


def _fraction(text: str) -> Fraction:
    """'3/4' as in a field; 0 for anything else."""
    if text.strip() in ("C", "C|"):
        return Fraction(1)
    match = re.match(r"\s*(\d{1,3})/(\d{1,3})", text)
    return Fraction(int(match[1]), int(match[2])) if match and int(match[2]) else Fraction(0)


def _varint(number: int) -> bytes:
    """Variable-length integer: seven bits per byte, the highest first; all bytes but the last have their top bit set."""
    parts = [number & 127]
    while number := number >> 7:
        parts.append(number & 127 | 128)
    return bytes(reversed(parts))
