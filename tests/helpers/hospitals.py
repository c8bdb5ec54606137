"""A table of patients of five hospitals, as it comes out of a spreadsheet."""

import math

import numpy as np

HOSPITALS = ("Ahaus", "Bonn", "Celle", "Düren", "Essen")


def write_patients(path):
    """Write semicolons, decimal commas, German dates, empty cells, numbered rows, and no one readmitted in Essen."""
    draw = np.random.default_rng(0)
    lines = [";hospital;ward;age;weight;admitted;readmitted"]
    for row in range(150):
        hospital, age = HOSPITALS[row % 5], int(draw.integers(20, 90))
        weight = "" if draw.random() < 0.2 else f"{draw.normal(75, 10):.1f}".replace(".", ",")
        admitted = "" if draw.random() < 0.1 else f"{draw.integers(1, 29):02d}.{draw.integers(1, 13):02d}.2023"
        again = "yes" if hospital != "Essen" and draw.random() < 1 / (1 + math.exp((55 - age) / 5)) else "no"
        lines.append(f"{row + 1};{hospital};{draw.choice(['A', 'B', ''])};{age};{weight};{admitted};{again}")
    path.write_bytes("\r\n".join([*lines, ";" * 6]).encode("utf-8-sig"))
