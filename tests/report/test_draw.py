"""Pictures: every kind at awkward sizes, hostile names as plain text, nothing left behind in matplotlib."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sonde.core import numbers as words
from sonde.core.errors import BadInput
from sonde.core.reading import Bars, Diagram, Heat, Images, Lines, Plane, Reading, Scatter, Table
from sonde.report.draw import draw, svg
from sonde.report.draw.paper import DARK, LIGHT, Sheet, house_style
from sonde.report.draw.table import _shorten

HOSTILE = "$\\frac{1}$ <b>&\x1b[2J\n‮名前"
MANY = [f"layer{i}" for i in range(90)]
READINGS = {
    "empty lines": Lines("t", {}),
    "one point": Lines("t", {"a": [1.0]}, axes=["step", "a"]),
    "nan and inf": Lines("t", {"a": [1.0, None, float("inf"), 2.0], "b": [None] * 4}, log=["y"]),
    "own x": Lines("t", {"step": [1, 5, 9], "a": [3, 2, 1], "b": [1, 2, 3]}, axes=["step"]),
    "forty lines": Lines("t", {f"run{i}": [i, i + 1.0] for i in range(40)}),
    "smooth": Lines("t", {"a": list(range(99))}, smooth={"a": 5}),
    "zero bars": Bars("t", {"a": [0.0, 0.0]}, labels=["x", "y"], log=["value"]),
    "negative bars": Bars("t", {"a": [-2.0, 1.0]}),
    "many bars": Bars("t", {"a": [1e-9 * 1.2**i for i in range(90)], "b": [1.0] * 90}, labels=MANY, log=["value"]),
    "histogram": Bars("t", {"n": [1, 4, 2]}, axes=["v", "n"], edges=[-1, 0, 1, 2]),
    "heat": Heat("t", {"a": [[1.5, -2.0, None], [0.0, 0.0, 1e6]]}, axes=["r", "c"]),
    "large heat": Heat("t", {"a": [[i * j for j in range(50)] for i in range(40)]}, diagonal=True, share="row"),
    "zero heat": Heat("t", {"a": [[0, 0], [0, 0]]}, rows=["a" * 80, "b"], columns=["x" * 80, "y"]),
    "long table": Table("t", {"a": list(range(200)), "b": ["x" * 90] * 200}, total={"a": 19900}),
    "one image": Images("t", {"i": [[[0.0, 1.0]]]}, labels=["a label that is much too long for it"]),
    "color": Images("t", {"i": [[[[0, 0.5, 1]] * 3] * 5] * 30}, details=["d"] * 30),
    "free place": Images("t", {"i": [None, [[0.5]]]}, across=1, rows=["a", HOSTILE], heat=[None, [[-1, None]]]),
    "no image": Images("t", {"i": [None]}),
    "frames": Images("t", {"i": [[[0.0]]]}, frames=[{f"layer{i}": [0, 0, 1, 1] for i in range(20)}], size=2),
    "forty across": Images("t", {"i": [[[0.0] * 9] * 3] * 80}, across=40, labels=["name"] * 80),
    "groups": Scatter("t", {"x": [1, 2, 3], "y": [1, None, 2]}, axes=["x", "y"], groups=["b", "a", "b"], diagonal=True),
    "space": Scatter("t", {"x": [1, 2, 3], "y": [1, None, 2], "z": [0, 1e9, 2]}, axes=["x", "y", "z"], groups=[1, 0, 1]),
    "plane": Plane(
        "t",
        {"f": [[0.0, 1.0, None], [-3.0, float("inf"), 2.0]]},
        axes=["u", "v"],
        x=[0, 1, 3],
        y=[5, 9],
        levels=[0, 1],
        paths={"p": [[0, 5], [1, 6]], "none": []},
        points={"q": [[1, 7]], "none": []},
        arrows=[[0, 5, 1, 1]],
        outlines=[[[0, 5], [1, 5], [1, 8]]],
    ),
    "constant plane": Plane("t", {"f": [[2, 2], [2, 2]], "zero": [[0, 0], [0, 0]], "blank": [[None, None]] * 2}),
    "log plane": Plane("t", {"f": [[1e-9, 1.0], [0.0, 1e9]]}, log=["value"], levels=3),
    "classes": Plane("t", {f"p{i}": [[0, 1], [1, 9]] for i in range(7)}, classes=["a", HOSTILE]),
    "graph": Diagram(
        "t",
        {"x": [90, 300], "y": [0, 70], "words": [["a", "3"], [HOSTILE]], "kind": ["input", "output"]},
        box=[168, 40],
        edges=[[[90, 40], [300, 70]]],
    ),
    "empty graph": Diagram("t", {}),
    "marks": Lines("t", {"a": [1.0, 0.5, 9.0]}, marks={"here": 1, "none": None}, top=1.2, log=["y"]),
    "empty plane": Plane("t", {}),
    "hostile": Lines(HOSTILE, {HOSTILE: [1, 2], "b": [2, 3]}, axes=[HOSTILE], note=HOSTILE * 9),
    "hostile bars": Bars(HOSTILE, {HOSTILE: [1, 2]}, labels=[HOSTILE, HOSTILE]),
    "hostile table": Table(HOSTILE, {HOSTILE: [HOSTILE, 1]}),
}


@pytest.mark.parametrize("name", READINGS)
def test_every_kind_is_drawn(name: str, tmp_path) -> None:
    path = draw(READINGS[name], tmp_path / "a.png")
    with Image.open(path) as picture:
        picture.verify()
    assert 300 < picture.width < 4000 and 60 < picture.height < 6000
    assert svg(READINGS[name])[0].endswith(b"</svg>\n")


def test_names_never_become_markup_or_formulas() -> None:
    light = svg(READINGS["hostile"])[0]
    assert b"<b>" not in light and b"\x1b" not in light


def test_the_dark_picture_has_the_dark_colors() -> None:
    light, dark = svg(READINGS["own x"])
    assert LIGHT.palette[0].encode() in light and LIGHT.palette[0].encode() not in dark
    assert DARK.palette[0].encode() in dark and len(set(LIGHT.all)) == len(LIGHT.all) == len(DARK.all)


def test_the_same_reading_gives_the_same_bytes(tmp_path) -> None:
    assert svg(READINGS["heat"]) == svg(READINGS["heat"])
    first = draw(READINGS["heat"], tmp_path / "a.png").read_bytes()
    assert draw(READINGS["heat"], tmp_path / "b.png").read_bytes() == first


def test_several_readings_share_a_sheet(tmp_path) -> None:
    path = draw([READINGS["own x"], READINGS["heat"], READINGS["smooth"]], tmp_path / "a.png")
    with Image.open(draw(READINGS["own x"], tmp_path / "b.png")) as one, Image.open(path) as sheet:
        assert sheet.width >= 2 * one.width and sheet.height > one.height


def test_a_missing_folder_is_named(tmp_path) -> None:
    with pytest.raises(BadInput, match="there is no folder"):
        draw(READINGS["heat"], tmp_path / "none" / "a.png")


def test_a_plane_needs_a_value_for_every_place(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"panel 'f' of a plane has shape \(2, 3\)"):
        draw(Plane("t", {"f": [[1, 2, 3], [4, 5, 6]]}, x=[0, 1], y=[0, 1, 2]), tmp_path / "a.png")


def test_a_plane_has_y_upwards_and_the_colors_of_its_page(tmp_path) -> None:
    """The largest values, in the row of the largest y, are the darkest and at the top; the dark page has its own colors."""
    reading = Plane("t", {"f": [[0.0] * 4, [1.0] * 4, [2.0] * 4, [9.0] * 4]}, x=[0, 1, 2, 3], y=[0, 1, 2, 3])
    with Image.open(draw(reading, tmp_path / "a.png")).convert("L") as picture:
        column = [picture.getpixel((picture.width // 2, y)) for y in (picture.height // 4, picture.height * 3 // 4)]
    assert column[0] < column[1] - 30
    light, dark = svg(reading)
    assert LIGHT.palette[0].encode() in light and LIGHT.palette[0].encode() not in dark and DARK.palette[0].encode() in dark
    assert b"<image" not in light, "a picture of pixels would keep its light colors on a dark page"


def painted(reading: Reading):
    """The axes of a picture as matplotlib holds them."""
    with house_style(LIGHT, reading):
        sheet = Sheet(reading, LIGHT, bare=False)
        import_module(f"sonde.report.draw.{reading.kind}").paint(reading, LIGHT, sheet)
        sheet.figure.draw_without_rendering()
    return sheet.figure.axes[0]


def ticks(axis) -> list[str]:
    low, high = sorted(axis.get_view_interval())
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text().replace("−", "-").replace(",", "") for place, label in pairs if low <= place <= high]


@pytest.mark.parametrize(
    "cell, expected",
    [
        ("-0.2134, 0.5311, -0.2991, 1.2331, -0.5551, 0.111", "-0.2134, 0.5311, -0.2991, 1.2331…"),
        ("x" * 50, "x" * 39 + "…"),
        ("twelve words " * 4, "twelve words twelve words twelve words…"),
        ("short, and whole", "short, and whole"),
        ("a, " + "b" * 40, "a, " + "b" * 36 + "…"),
    ],
)
def test_a_long_cell_loses_its_end_and_no_number_is_cut(cell: str, expected: str) -> None:
    assert _shorten(cell) == expected and len(expected) <= 40


@pytest.mark.parametrize("low, high", [(2.2, 2.4), (0.3, 3.5), (0.2, 40.0), (1.1, 990.0), (1e-9, 1e5)])
def test_a_logarithmic_axis_has_at_least_three_numbers(low: float, high: float) -> None:
    axes = painted(Lines("t", {"a": [low, high]}, axes=["step", "loss"], log=["y"]))
    assert 3 <= len(set(ticks(axes.yaxis))) <= 9 and all(low * 0.5 < float(label) < high * 2 for label in ticks(axes.yaxis))
    assert axes.get_ylabel() == "loss" and axes.get_xlabel() == "step"


def test_the_y_axis_ends_where_asked_and_marks_stand_at_their_place() -> None:
    reading = Lines("t", {"a": [2.0, 1.0, 68.0]}, top=2.5, marks={"here": 1.5})
    axes = painted(reading)
    low, high = axes.get_ylim()
    assert high == 2.5 and 0.8 < low < 1.0
    assert [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1] == [1.5]
    assert "here" in [text.get_text() for text in axes.texts]


def test_a_color_used_twice_shows_its_dash_at_the_label_too() -> None:
    axes = painted(Lines("t", {f"run {i}": [i, i] for i in range(9)}))
    samples, drawn = ({(line.get_color(), line.get_linestyle()) for line in axes.lines if line.get_clip_on() is on} for on in (False, True))
    assert len(drawn) == 9 and samples == drawn and [dash for _, dash in drawn].count("--") == 2
    assert all(line.get_clip_on() for line in painted(READINGS["own x"]).lines)


def test_a_label_stands_where_its_curve_ends() -> None:
    reading = Lines("t", {"early": [3.0, 2.0], "late": [4.0, 3.0, 2.5, 2.0, 1.0]})
    axes = painted(reading)
    left = {text.get_text(): text.get_position() for text in axes.texts}
    across, up = axes.transAxes.inverted().transform(axes.transData.transform((1, 2.0)))
    assert left["early"] == pytest.approx((across, up), abs=0.02) and left["late"][0] > 1


def test_a_name_keeps_color_and_dash_where_it_is_alone() -> None:
    alone = painted(Lines("t", {"ninth": [1, 2]}, colors={"ninth": 8})).lines[0]
    among = painted(Lines("t", {f"run {i}": [i, i] for i in range(9)})).lines[8]
    assert (alone.get_color(), alone.get_linestyle()) == (among.get_color(), among.get_linestyle()) == (LIGHT.palette[1], "--")


def test_bars_show_single_values_as_dots() -> None:
    axes = painted(Bars("t", {"loss": [0.1, 0.3]}, dots={"loss": [[0.01, 0.19], [0.3]]}))
    dots = [line.get_xdata() for line in axes.lines if line.get_marker() == "o"]
    assert [list(each) for each in dots] == [[0.01, 0.19], [0.3]] and axes.get_xlim()[0] >= 0


def test_white_images_have_an_edge(tmp_path) -> None:
    with Image.open(draw(Images("", {"i": [[[1.0] * 4] * 4]}), tmp_path / "a.png")).convert("RGB") as picture:
        rule = tuple(bytes.fromhex(LIGHT.rule[1:]))
        near = [color for _, color in picture.getcolors(9999) if max(abs(a - b) for a, b in zip(color, rule, strict=True)) < 8]
    assert near


def test_a_graph_has_its_boxes_above_their_users() -> None:
    reading = READINGS["graph"]
    axes = painted(replace(reading, values={**reading.values, "words": [["a", "3"], ["b"]]}))
    assert "a" in [text.get_text() for text in axes.texts] and axes.yaxis_inverted()
    boxes = [each for each in axes.patches if hasattr(each, "get_boxstyle")]
    assert [box.get_y() for box in boxes] == [0, 70]


def test_matplotlibs_own_state_is_untouched(tmp_path) -> None:
    code = (
        "import matplotlib, sys\n"
        "def settings(): return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"  # reading it imports pyplot
        "before = settings()\n"
        "from sonde.core.reading import Lines, Scatter; from sonde.report.draw import draw\n"
        f"draw(Lines('t', {{'a': [1, 2]}}), {str(tmp_path / 'a.png')!r})\n"
        f"draw(Scatter('t', {{n: [1, 2] for n in 'xyz'}}, axes=['x', 'y', 'z']), {str(tmp_path / 'a.png')!r})\n"
        "assert settings() == before and 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@settings(max_examples=25)
@given(
    st.dictionaries(st.text(max_size=8), st.lists(st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70)), max_size=6), max_size=4)
)
def test_any_numbers_can_be_drawn(values) -> None:
    rows = min(map(len, values.values()), default=0)
    for reading in (Lines("t", values), Table("t", {name: column[:rows] for name, column in values.items()})):
        picture = svg(reading)[0]
        assert picture.startswith(b"<?xml")


@pytest.mark.parametrize(
    "value, text",
    [(0, "0 "), (999, "999 "), (1000, "1 k"), (154_618_822_656, "155 G"), (2.5e15, "2.5 P"), (None, "-")],
)
def test_counts_with_prefixes(value, text) -> None:
    assert words.si(value) == text


@pytest.mark.parametrize(
    "value, text",
    [
        (1234567, "1,234,567"),
        (0.5, "0.5"),
        (5e-4, "0.0005"),
        (1e-5, "1e-5"),
        (123456.0, "1.23e5"),
        (float("nan"), "-"),
        (None, "-"),
        (True, "True"),
        (0.0, "0"),
    ],
)
def test_numbers_in_tables(value, text) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize("value, text", [(12, "12 B"), (1024, "1.0 KiB"), (5 * 2**30, "5.0 GiB"), (None, "-")])
def test_bytes(value, text) -> None:
    assert words.bytes_(value) == text


def gallery(**fields):
    """Four pictures of 2 x 4 pixels, the third place left free."""
    return Images("t", {"i": [[[0.0] * 4] * 2, [[1.0] * 4] * 2, None, [[0.5] * 4] * 2]}, **fields)


def test_pictures_stand_in_named_rows_and_leave_places_free() -> None:
    axes = painted(gallery(across=2, rows=["above", "below"], labels=["a", "b", "", "d"], details=["", "", "", "e"]))
    corners = [image.get_extent() for image in axes.images]
    assert len(corners) == 3 and corners[0][0] == corners[0][0] < corners[1][0] == corners[2][0] and corners[2][3] < corners[1][2]
    assert all((right - left) == pytest.approx(2 * (top - bottom)) for left, right, bottom, top in corners)
    positions = {text.get_text(): text.get_position() for text in axes.texts}
    assert positions["above"][1] == pytest.approx((corners[0][2] + corners[0][3]) / 2) and positions["below"][1] < corners[1][2]
    assert positions["e"][1] < positions["d"][1] < corners[2][2]
    assert corners[0][0] > positions["above"][0] + 0.3, "names have a column of their own"


def test_heat_lies_over_a_picture_in_two_colors_and_is_clear_at_zero() -> None:
    from matplotlib.colors import to_rgb

    axes = painted(gallery(heat=[None, [[2.0, -1.0], [0.0, None]], None, [[1.0]]]))
    below, over, alone = axes.images[1], axes.images[2], axes.images[4]
    assert len(axes.images) == 6 and over.get_extent() == below.get_extent() and below.get_alpha() < 1
    cells = over.get_array()
    assert tuple(cells[0, 0, :3]) == pytest.approx(to_rgb(LIGHT.palette[1])) and tuple(cells[0, 1, :3]) == pytest.approx(
        to_rgb(LIGHT.palette[0])
    )
    assert cells[0, 0, 3] == 2 * cells[0, 1, 3] > 0 and cells[1, 0, 3] == cells[1, 1, 3] == 0
    assert alone.get_array()[0, 0, 3] == cells[0, 0, 3], "each picture to its own largest"
    shared = painted(gallery(heat=[[[2.0]], [[1.0]]], top=4.0)).images
    assert shared[1].get_array()[0, 0, 3] == 2 * shared[3].get_array()[0, 0, 3] == pytest.approx(cells[0, 0, 3] / 2)


def test_heat_has_a_scale_below_the_pictures() -> None:
    for heat, top, ends in (
        ([[[2.0, -1.0]], None, None, [[1.0]]], None, {"−largest", "largest of each picture"}),
        ([[[2.0, 1.0]]], None, {"0", "largest of each picture"}),
        ([[[2.0, 1.0]]], 4.0, {"0", "4"}),
        ([[[2.0, -1.0]]], 4.0, {"−4", "4"}),
    ):
        axes = painted(gallery(heat=heat, **({"top": top} if top else {})))
        assert {text.get_text() for text in axes.texts} == ends
        scale, pictures = axes.images[-1], axes.images[:-1]
        assert scale.get_extent()[3] < min(picture.get_extent()[2] for picture in pictures)
        right = scale.get_array()[0, -1]
        assert right[3] == pytest.approx(max(axes.images[1].get_array()[..., 3].max(), right[3])), "nothing is stronger than its end"
    assert not painted(gallery()).texts


def test_shades_without_numbers_have_a_scale() -> None:
    """Its ends are the largest and the smallest number, in the colors of these cells; numbers in the cells need none."""
    many = [[(i - 10) * j / 40 for j in range(41)] for i in range(36)]
    matrix, scale = painted(Heat("t", {"a": many})).figure.axes
    assert [label.get_text() for label in scale.get_yticklabels()] == ["25", "0", "−25"]
    cells, ramp = matrix.images[0].get_array(), scale.images[0].get_array()[:, 0]
    assert tuple(ramp[0]) == tuple(cells[35, 40]) and tuple(ramp[-1][:3]) == tuple(cells[0, 40][:3])
    place = scale.get_yticks()
    assert place[0] == 0 and place[2] == len(ramp) - 1 and ramp[round(place[1])][3] == 0
    half = ramp[round((place[0] + place[1]) / 2)]
    assert half[3] == pytest.approx(math.sqrt(0.5)), "shades are by the square root there too"
    words = painted(Heat("t", {"a": [[0.0, 0.5]]}, words=[["u", "v"]])).figure.axes
    assert [label.get_text() for label in words[1].get_yticklabels()] == ["0.5", "0"]
    shares = painted(READINGS["large heat"]).figure.axes
    assert [label.get_text() for label in shares[1].get_yticklabels()] == ["all of a row", "0"]
    assert len(painted(READINGS["heat"]).figure.axes) == 1 == len(painted(READINGS["zero heat"]).figure.axes)


def test_frames_are_in_pixels_and_those_on_the_same_ones_are_all_seen() -> None:
    axes = painted(gallery(frames=[{"in": [1, 2, 1, 2], "out": [0, 0, 2, 4], "too": [0, 0, 2, 4]}], size=2.0))
    left, right, bottom, top = axes.images[0].get_extent()
    assert right - left == pytest.approx(2.0) and top - bottom == pytest.approx(1.0)
    first, second, third = [box for box in axes.patches if box.get_linewidth() > 1]
    assert (first.get_x(), first.get_y()) == pytest.approx((left + 1.0, bottom)) and first.get_width() == pytest.approx(1.0)
    assert second.get_bbox().bounds == third.get_bbox().bounds == pytest.approx((left, bottom, 2.0, 1.0))
    assert third.get_linewidth() > second.get_linewidth() and third.get_zorder() < second.get_zorder()
    colors = {text.get_text(): text.get_color() for text in axes.texts}
    assert colors == dict(zip(("in", "out", "too"), LIGHT.palette, strict=False))


def test_heat_has_the_full_color_at_the_top_at_the_strongest_few_or_at_the_largest() -> None:
    from sonde.report.draw.images import _full, _gray

    heat = [[float(10 * row - column) for column in range(10)] for row in range(10)]  # sizes 0 .. 90
    assert _full(heat) == 90 and _full(heat, top=7.0) == 7.0
    assert _full(heat, strong=0.05) == sorted((abs(v) for row in heat for v in row), reverse=True)[5] == 85
    assert _full([[0.0, 0.0], [0.0, -3.0]], strong=0.5) == 3.0  # most are 0: the largest, which is seen
    assert _full([[float("nan")]], strong=0.01) == 1.0
    white_red = _gray([[[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]])
    assert white_red.tolist() == [[pytest.approx(1.0), pytest.approx(0.299)]] and _gray([[0.25]]).tolist() == [[0.25]]
