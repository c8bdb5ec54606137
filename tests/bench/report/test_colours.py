"""Colours of the report: far enough apart for all readers, and readable on their background."""

import itertools
from itertools import combinations

import numpy as np
import pytest

from dfl_lightning.bench.report.look.theme import DARK, LIGHT

# Machado, Oliveira and Fernandes (2009), severity 1: what people see who lack a kind of cone, in linear RGB
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x = np.array(to_xyz) @ rgb / [0.95047, 1, 1.08883]
    f = np.where(x > (6 / 29) ** 3, np.cbrt(x), x / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one, two):
    """Compute the colour difference of Sharma, Wu and Dalal (2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, two
    c = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(c**7 / (c**7 + 25**7)))
    c1, c2 = np.hypot(a1 * (1 + g), b1), np.hypot(a2 * (1 + g), b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1 * (1 + g))) % 360, np.degrees(np.arctan2(b2, a2 * (1 + g))) % 360
    dh = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    dl, dc, dh = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(dh / 2))
    lm, cm = (l1 + l2) / 2, (c1 + c2) / 2
    far = abs(h1 - h2) > 180
    hm = h1 + h2 if not c1 * c2 else (h1 + h2) / 2 + (180 if far and h1 + h2 < 360 else -180 if far else 0)
    t = 1 - 0.17 * np.cos(np.radians(hm - 30)) + 0.24 * np.cos(np.radians(2 * hm))
    t += 0.32 * np.cos(np.radians(3 * hm + 6)) - 0.2 * np.cos(np.radians(4 * hm - 63))
    sl, sc, sh = 1 + 0.015 * (lm - 50) ** 2 / np.sqrt(20 + (lm - 50) ** 2), 1 + 0.045 * cm, 1 + 0.015 * cm * t
    r = -2 * np.sqrt(cm**7 / (cm**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hm - 275) / 25) ** 2))))
    return np.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + r * (dc / sc) * (dh / sh))


def contrast(one, two):
    bright, dark = sorted((linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, two)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_distance_is_the_published_one():
    assert ciede2000((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50, 2.49, -0.001), (50, -2.49, 0.0011)) == pytest.approx(7.2195, abs=1e-4)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@THEMES
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_methods_are_distinguishable(theme, vision):
    *seen, alone = [lab(np.clip(np.array(VISION[vision]) @ linear(colour), 0, 1)) for colour in theme["category"]]
    assert len(seen) == 12
    assert min(ciede2000(a, b) for a, b in combinations(seen[:6], 2)) >= 16
    assert min(ciede2000(a, b) for a, b in combinations(seen, 2)) >= (16 if vision == "normal" else 9.5)
    assert min(ciede2000(alone, a) for a in seen) >= 10.5  # a grey, whose line is dotted


@THEMES
def test_words_and_lines_stand_out_from_their_background(theme):
    words = [*theme["category"], theme["ink"], theme["soft"], theme["new"], theme["dropped"]]
    assert min(contrast(colour, theme["card"]) for colour in words) >= 4.5
    assert min(contrast(theme[name], theme["card"]) for name in ("kept", "probed", "substitute", "stands_in")) >= 3


@THEMES
@pytest.mark.parametrize("vision", VISION)
def test_gains_and_losses_are_distinguishable_and_texts_on_them_readable(theme, vision):
    stops = np.array([linear(colour) for colour in theme["gain"]])
    seen = [lab(np.clip(np.array(VISION[vision]) @ colour, 0, 1)) for colour in stops]
    assert min(ciede2000(seen[at], seen[4 - at]) for at in (0, 1)) >= 35
    assert min(ciede2000(a, b) for a, b in itertools.pairwise(seen)) >= 20
    for colour in (*theme["gain"], *theme["ramp"]):
        assert max(contrast(colour, "#000000"), contrast(colour, "#ffffff")) >= 4.5


@THEMES
@pytest.mark.parametrize("vision", VISION)
def test_clients_that_stand_in_are_blue_and_seen(theme, vision):
    for colour in theme["blues"]:
        red, green, blue = linear(colour)
        assert blue > 1.3 * max(red, green)
        assert contrast(colour, theme["card"]) >= 3
        seen = [lab(np.clip(np.array(VISION[vision]) @ linear(one), 0, 1)) for one in (colour, theme["kept"])]
        assert ciede2000(*seen) >= 12  # from the grey of those that dropped out
