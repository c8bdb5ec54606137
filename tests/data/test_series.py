"""Series: samples lie on one side of each cut in time, and standardisation knows the training part only."""

import numpy as np
import pytest
import torch

from dfl_lightning import UserError
from dfl_lightning.data import IID, FederatedData, Series
from dfl_lightning.data.sets.seasonal import PERIODS, seasonal_clusters, seasonal_series

LENGTHS = {"north": 40, "south": 55, "west": 31}
WINDOW, HORIZON, STRIDE = 4, 2, 3


def write(path, lengths=None, shift=0.0, from_time=10**6):
    """Two columns of numbers that say which series and time they are of, rows in a random order, times as dates."""
    rows = []
    for place, (name, length) in enumerate((lengths or LENGTHS).items()):
        for t in range(length):
            moved = shift if t >= from_time else 0.0
            day = np.datetime64("2021-01-01") + t
            rows.append((name, str(day), 1000.0 * place + t + moved, float(np.sin(t)) * 10.0 ** (place - 1) + moved))
    np.random.default_rng(0).shuffle(rows)
    if path.suffix == ".csv":
        path.write_text("shop,day,a,b\n" + "".join(f"{name},{day},{a!r},{b!r}\n" for name, day, a, b in rows))
    else:
        columns = zip(("shop", "day", "a", "b"), zip(*rows, strict=True), strict=True)
        np.savez(path, **{name: np.array(column) for name, column in columns})
    return str(path)


def made(file, **options):
    described = {"client": "shop", "time": "day", "value": ["a", "b"], "target": "b", "num_clients": 3}
    sizes = {"window": WINDOW, "horizon": HORIZON, "stride": STRIDE, "test_fraction": 0.25, "val_fraction": 0.3}
    found = Series(file, **{**described, **sizes, **options})
    found.setup()
    return found


def cuts(length):
    """Return the first indices of the validation and the test part."""
    tested = int(0.25 * length)
    return length - tested - int(0.3 * (length - tested)), length - tested


@pytest.mark.parametrize("scope", ["client", "global", None])
def test_samples_respect_the_cuts_and_the_training_scale(scope, tmp_path):
    """Every window by a plain loop, in the unit of the file, from inputs and targets as clients have them."""
    found = made(write(tmp_path / "table.csv"), standardise=scope)
    split, clients = found.client_split, found.clients
    assert found.source.images.data_ptr() == clients.images.data_ptr()  # kept once
    assert list(split.writers) == list(LENGTHS)
    values = [
        np.array([[1000.0 * place + t, np.sin(t) * 10.0 ** (place - 1)] for t in range(length)])
        for place, length in enumerate(LENGTHS.values())
    ]
    training = []
    for series, length in zip(values, LENGTHS.values(), strict=True):
        starts = [s for s in range(0, length, STRIDE) if s + WINDOW + HORIZON <= cuts(length)[0]]
        training.append(series[: starts[-1] + WINDOW + HORIZON])
    for client, length in enumerate(LENGTHS.values()):
        known = np.concatenate(training) if scope == "global" else training[client]
        mean, deviation = (known.mean(0), known.std(0)) if scope else (np.zeros(2), np.ones(2))
        assert np.allclose(split.client_means[client], mean, rtol=1e-12)
        assert np.allclose(split.client_deviations[client], deviation, rtol=1e-12)
        val_from, test_from = cuts(length)
        bounds = {"train": (0, val_from), "val": (val_from, test_from), "test": (test_from, length)}
        for part, (begin, end) in bounds.items():
            own = getattr(clients, part)[client]
            starts = [s for s in range(0, length, STRIDE) if s >= begin and s + WINDOW + HORIZON <= end]
            assert len(own) == len(starts) > 0
            x = clients.images[own].double().numpy() * deviation[:, None] + mean[:, None]
            y, scale = clients.labels[own].double().unbind(1)
            assert np.allclose(scale, deviation[1])
            for row, s in enumerate(starts):
                assert np.allclose(x[row], values[client][s : s + WINDOW].T, atol=2e-3)
                following = values[client][s + WINDOW : s + WINDOW + HORIZON, 1]
                assert np.allclose(y[row] * deviation[1] + mean[1], following, atol=1e-3)


def test_training_windows_contain_no_held_out_values(tmp_path):
    """Other values from the first cut of the shortest series on: training samples have the same bits."""
    lengths = dict.fromkeys(LENGTHS, 40)
    first = cuts(40)[0]
    plain = made(write(tmp_path / "plain.csv", lengths))
    moved = made(write(tmp_path / "moved.csv", lengths, shift=1e5, from_time=first))
    for client in range(3):
        for one, other in ((plain.clients.images, moved.clients.images), (plain.clients.labels, moved.clients.labels)):
            assert torch.equal(one[plain.clients.train[client]], other[moved.clients.train[client]])
            assert (one[plain.clients.val[client]] - other[moved.clients.val[client]]).abs().amax() > 100


def test_csv_npz_and_split_files_give_equal_data(tmp_path):
    csv = made(write(tmp_path / "table.csv"))
    csv.save_split(tmp_path / "split.npz")
    again = {"split": str(tmp_path / "split.npz"), "test_fraction": 0.5, "standardise": None, "seed": 9}
    others = made(write(tmp_path / "table.npz")), made(write(tmp_path / "table.csv"), **again)
    for other in others:
        assert torch.equal(csv.clients.images, other.clients.images)
        assert torch.equal(csv.clients.labels, other.clients.labels)
        for part in ("train", "val", "test"):
            for one, two in zip(getattr(csv.clients, part), getattr(other.clients, part), strict=True):
                assert torch.equal(one, two)
    assert others[1].describe() == (
        "table.csv, a series each from split.npz: 4–9 train / 1–3 validation / 1–3 test windows a client"
    )


MOMENT = np.datetime64("2024-05-01T00:00", "ns")


@pytest.mark.parametrize(
    "times",
    [
        MOMENT + np.arange(90).astype("timedelta64[ns]"),
        (MOMENT + np.arange(90).astype("timedelta64[D]")).astype("datetime64[s]"),
        np.arange(90) + 1_714_521_600_000_000_000,
        (np.arange(90) + 1_714_521_600_000_000_000).astype(str),
        np.arange(90).astype("timedelta64[h]"),
        np.array([f"2024-05-01T00:{t // 60:02}:{t % 60:02}".encode() for t in range(90)]),
    ],
    ids=lambda times: str(times.dtype),
)
def test_times_are_sorted_for_every_npz_type(times, tmp_path):
    """Nanoseconds too, which float64 does not tell apart."""
    shuffled = np.random.default_rng(0).permutation(90)
    shop, b = np.repeat(["é", "x"], 45), np.arange(90.0)
    arrays = {"shop": np.char.encode(shop, "utf-8"), "b": b, "day": times}
    np.savez(tmp_path / "t.npz", **{name: array[shuffled] for name, array in arrays.items()})
    table = Series(str(tmp_path / "t.npz"), client="shop", value="b", time="day")._read()
    assert table.names == ("x", "é")
    assert np.array_equal(np.concatenate(table.values)[:, 0], np.roll(b, 45))


def test_a_spreadsheets_csv_file_gives_equal_data(tmp_path):
    write(tmp_path / "table.csv")
    text = (tmp_path / "table.csv").read_text().replace("\n", "\r\n")
    (tmp_path / "SHEET.CSV").write_bytes(f"\ufeff{text}\r\n".encode())
    one, other = made(str(tmp_path / "table.csv")), made(str(tmp_path / "SHEET.CSV"))
    assert torch.equal(one.clients.images, other.clients.images)


def test_synthetic_series_are_reproducible_with_their_clusters_periods():
    table, clusters = seasonal_series(8), seasonal_clusters(8)
    assert len({len(values) for values in table.values}) > 4
    for values, longer, cluster in zip(table.values, seasonal_series(8).values, clusters, strict=True):
        assert np.array_equal(values, longer)
        x = values[:, 0] - values.mean()
        similar = [np.corrcoef(x[lag:], x[:-lag])[0, 1] for lag in range(2, 24)]
        assert 2 + int(np.argmax(similar)) == PERIODS[cluster]
    found = Series(num_clients=8, seed=3)
    found.setup()
    assert found.clients.clusters.tolist() == clusters.tolist()
    assert found.notes() == []


def test_windows_are_split_at_random_only_on_request(tmp_path):
    found = made(write(tmp_path / "table.csv"), random_windows=True, partition=IID(), num_clients=4)
    assert found.notes() == [
        "data.random_windows: what is tested overlaps what is trained on, so that errors are too low"
    ]
    for client in range(4):
        own = found.clients.train[client]
        covered = np.concatenate([np.arange(s, s + WINDOW + HORIZON) for s in found._starts[own]])
        known = found._values[np.unique(covered)]
        assert np.allclose(found.client_split.client_means[client], known.mean(0))
        assert float(found.clients.labels[own, 1].unique()) == pytest.approx(known[:, 1].std(), rel=1e-6)


GOOD = {"client": "shop", "value": "b"}
WRONG = {
    "partition": (
        {"partition": IID()},
        "data.partition IID divides windows at random, so that .* random_windows: true",
    ),
    "some": ({"samples_per_client": 5}, "samples_per_client draws windows at random; thin them by stride"),
    "window": ({"window": 0}, "window=0, horizon=4, stride=1; each must be 1 or more"),
    "scope": ({"standardise": "row"}, "standardise=row; it must be client, global or null"),
    "no file": ({"time": "day"}, "describe a file; name it by data.file"),
    "image": ({"augment": True}, "data.augment is for images"),
    "target": ({"file": "table.csv", **GOOD, "target": "c"}, "data.target has c, and data.value b; add it"),
    "nothing": ({"file": "table.csv", "client": "shop", "value": []}, "are lists with a column or more; name one"),
    "twice": ({"file": "table.csv", "client": "shop", "value": "shop"}, "name a column twice .shop, shop"),
    "kind": ({"file": "table.xlsx", **GOOD}, "is neither a text file .* nor an .npz file"),
    "missing": ({"file": "none.csv", **GOOD}, "none.csv does not exist; check data.file"),
    "column": (
        {"file": "table.csv", **GOOD, "time": "hour"},
        "data.time: table.csv has no column 'hour' .it has shop, day, a, b",
    ),
    "array": ({"file": "table.npz", **GOOD, "time": "hour"}, "has no array hour; name arrays by data.client"),
    "no npz": ({"file": "text.npz", **GOOD}, "text.npz is no npz file; save arrays by numpy.savez"),
    "shapes": ({"file": "shapes.npz", **GOOD}, r"has shop \[2\], b \[3\]; arrays are \[N\]"),
    "short line": ({"file": "short.csv", **GOOD}, "line 3: 1 values for 2 columns"),
    "empty": ({"file": "empty.csv", **GOOD}, "has no rows; give a file with some"),
    "word": ({"file": "word.csv", **GOOD}, "b of line 3 is 'much', not a finite number"),
    "dates": ({"file": "dates.csv", **GOOD, "time": "day"}, "day of line 2 is '1/2/2020', and times are all numbers"),
    "one time": ({"file": "again.csv", **GOOD, "time": "day"}, "series x has time 2020-01-01 twice; give each time"),
    "short series": (
        {"file": "table.csv", **GOOD, "window": 12, "val_fraction": 0.2, "num_clients": 3},
        r"3 clients, but only 0 of the 3 series of table.csv have a sample of 12 \+ 4 times .* training, validation",
    ),
    "no series": (
        {"file": "table.csv", **GOOD, "window": 60, "num_clients": 3},
        r"none of the 3 series of table.csv has 60 \+ 4 times \(window \+ horizon\), the longest has 55; lower window",
    ),
    "no name": ({"file": "name.csv", **GOOD}, "shop of line 3 is empty; fill it in, or remove the row"),
    "a hole": ({"file": "hole.csv", **GOOD, "time": "day"}, "day of line 4 is '', and times are all numbers"),
    "no time": ({"file": "kinds.npz", **GOOD, "time": "day"}, r"day of row 1 \(counted from 0\) is 'NaT'"),
    "complex": ({"file": "kinds.npz", "client": "shop", "value": "c"}, "c is complex128; it must be numbers"),
    "too many": ({"file": "table.csv", **GOOD, "window": 2, "horizon": 1}, "20 clients, but only 3 of the 3 series"),
    "split": (
        {"file": "table.csv", **GOOD, "window": 2, "horizon": 1, "num_clients": 3, "split": "split.npz"},
        "data.split: split.npz does not say how series are standardised",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_unusable_series_are_refused_in_one_sentence(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "table.csv"), write(tmp_path / "table.npz")
    texts = {"short": "shop,b\nx,1\nx\n", "empty": "shop,b\n", "word": "shop,b\nx,1\nx,much\n"}
    texts |= {"name": "shop,b\nx,1\n,2\n", "hole": "shop,b,day\nx,1,1.5\nx,1,2.5\nx,1,\n"}
    texts |= {"dates": "shop,b,day\nx,1,1/2/2020\n", "again": "shop,b,day\n" + "x,1,2020-01-01\n" * 2}
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "text.npz").write_text("no archive")
    np.savez("shapes.npz", shop=np.zeros(2), b=np.zeros(3))
    days = np.array(["2024-05-01", "NaT"], "datetime64[D]")
    np.savez("kinds.npz", shop=np.zeros(2), b=np.zeros(2), c=np.zeros(2, complex), day=days)
    options, sentence = WRONG[what]
    if what == "split":
        found = Series(**{**options, "split": None})
        found.setup()
        found._split = type(found._split)(**{**vars(found._split), "client_means": None, "client_deviations": None})
        FederatedData.save_split(found, "split.npz")
    with pytest.raises(UserError, match=sentence) as caught:
        Series(**options).setup()
    assert "\n" not in str(caught.value)
