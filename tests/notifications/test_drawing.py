"""The picture of the evidence: what is where, and that nothing keeps a message from being sent."""

import io
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import product

import pytest
from builders import NOON
from PIL import Image

from scaler.notifications.drawing import WIDTH, draw, drawn
from scaler.notifications.evidence import Evidence, SignalPicture

WORK, QUIET, HOLE, DEADLINE = (37, 99, 201), (174, 183, 196), (233, 220, 195), (179, 38, 30)


def signal(*peaks: float | None, floor: float = 0.01) -> SignalPicture:
    begin = NOON - timedelta(hours=2)
    return SignalPicture(name="gr_engine_active", begin=begin, end=NOON, floor_ratio=floor, peaks=peaks)


def evidence(*signals: SignalPicture, suspend_at: datetime | None = None) -> Evidence:
    return Evidence(workload="Deployment demo/<serve>", signals=signals, suspend_at=suspend_at)


def image(of: Evidence) -> Image.Image:
    return Image.open(io.BytesIO(draw(of))).convert("RGBA")


def plot(of: Evidence) -> Image.Image:
    """Of one signal, without the words above and below."""
    whole = image(of)
    return whole.crop((0, 56, whole.width, whole.height - 52))


def columns(of: Image.Image, colour: Sequence[int]) -> list[int]:
    """The x of all pixels of that colour, or one next to it: there are few colours."""
    found = set()
    for x, y in product(range(of.width), range(of.height)):
        *seen, alpha = of.getpixel((x, y))  # type: ignore[misc]
        if alpha and max(abs(one - other) for one, other in zip(seen, colour, strict=True)) <= 6:
            found.add(x)
    return sorted(found)


def test_work_is_on_the_left_where_it_was_and_quiet_after_it() -> None:
    made = plot(evidence(signal(0.6, *[0.004] * 15)))
    assert max(columns(made, WORK)) < min(columns(made, QUIET)) < made.width // 8
    assert columns(made, HOLE) == []


def test_a_hole_is_neither_work_nor_quiet() -> None:
    made = plot(evidence(signal(*[None] * 8, *[0.0] * 8)))
    assert columns(made, WORK) == []
    assert max(columns(made, HOLE)) < made.width // 2 <= min(columns(made, QUIET)) + 8


@pytest.mark.parametrize(("ahead", "is_shown"), [(30, True), (119, True), (60 * 30, False), (-1, False)])
def test_the_deadline_is_a_line_behind_the_samples_unless_it_is_far(ahead: int, is_shown: bool) -> None:
    made = plot(evidence(signal(*[0.0] * 16), suspend_at=NOON + timedelta(minutes=ahead)))
    found = columns(made, DEADLINE)
    assert bool(found) is is_shown
    assert not found or min(found) > max(columns(made, QUIET))


def test_every_signal_has_a_row_and_the_picture_is_small() -> None:
    one, three = (draw(evidence(*[signal(*[0.5] * 32)] * count)) for count in (1, 3))
    assert Image.open(io.BytesIO(one)).size[0] == Image.open(io.BytesIO(three)).size[0] == 2 * WIDTH
    assert Image.open(io.BytesIO(three)).height > 2 * Image.open(io.BytesIO(one)).height
    assert len(three) < 30_000


def test_its_corners_are_transparent_and_its_ground_is_not() -> None:
    made = image(evidence(signal(0.0)))
    assert [made.getpixel((x, y))[3] for x, y in ((0, 0), (made.width - 1, made.height - 1))] == [0, 0]  # type: ignore[index]
    assert made.getpixel((made.width // 2, 8))[3] == 255  # type: ignore[index]


def test_what_cannot_be_drawn_is_no_picture() -> None:
    assert drawn(evidence()) is None
