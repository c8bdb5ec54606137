"""Tables as spreadsheets and libraries write them: separators, blanks, gaps, dates, names; against scikit-learn."""

import gzip
import re

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from dfl_lightning import DFLModule, DFLTrainer, UserError
from dfl_lightning.callbacks import Gossip, Uniform
from dfl_lightning.data import Series, Vectors
from dfl_lightning.models import Tabular
from dfl_lightning.runs.python_config import Writer

ROWS = [("north", 1.5, 5.0, 10.0), ("south", 2.0, 6.0, 20.0), ("north", 3.0, 5.0, 60.0), ("south", 4.0, 8.0, 30.0)]


def text(separator, names=("shop", "age", "town", "price")):
    return "\n".join(separator.join(map(str, row)) for row in (names, *ROWS)) + "\n"


def of(path, content, **options):
    path.write_text(content, encoding="utf-8") if isinstance(content, str) else path.write_bytes(content)
    return Vectors(str(path), **{"target": "price", **options})


def inputs_of(table):
    return table.load().images.numpy()


FILES = {
    "semicolon": ("a.csv", text(";"), {}),
    "tab": ("a.csv", text("\t"), {}),
    "tsv": ("a.tsv", text("\t"), {}),
    "bar": ("a.txt", text("|"), {}),
    "blanks": ("a.txt", text("  ").replace("\n", " \n "), {}),
    "given": ("a.csv", text("&"), {"separator": "&"}),
    "given tab": ("a.csv", text("\t"), {"separator": "tab"}),
    "sep=": ("a.csv", "sep=&\n" + text("&"), {}),
    "after commas": ("a.csv", text(",  ").replace("north", '"north" ').replace("shop", " shop"), {}),
    "empty lines": ("a.csv", text(",").replace("\n", "\r\n\r\n") + ",,,\r\n", {}),
    "empty column": ("a.csv", text(";").replace("\n", ";\n"), {}),
    "gz": ("a.csv.gz", gzip.compress(text(",").encode()), {}),
    "tsv gz": ("a.tsv.GZ", gzip.compress(text("\t").encode()), {}),
    "utf-16": ("a.txt", text("\t").encode("utf-16"), {}),
    "decimal comma": ("a.csv", text(";").replace(".", ","), {"decimal": ","}),
    "dropped": ("a.csv", text(",", ("shop", "age", "town", "price")).replace("\n", ",x\n"), {"drop": ["x"]}),
}


@pytest.mark.parametrize("what", FILES)
def test_one_table_in_many_files_is_the_same_data(what, tmp_path):
    name, content, options = FILES[what]
    source = of(tmp_path / name, content, client="shop", **options).load()
    assert source.images.tolist() == [[1.5, 5.0], [2.0, 6.0], [3.0, 5.0], [4.0, 8.0]]
    assert source.labels.tolist() == [[10.0], [20.0], [60.0], [30.0]]
    assert source.writer_names == ("north", "south")
    assert source.writers.tolist() == [0, 1, 0, 1]


GAPS = "shop;age;weight;price\n" + "\n".join(
    f"{'north' if i % 2 else 'south'};{'' if i % 5 == 0 else i};{'NA' if i % 7 == 3 else 50 + i * i};{10 + i}"
    for i in range(40)
)
NUMBERS = np.array([[np.nan if i % 5 == 0 else i, np.nan if i % 7 == 3 else 50.0 + i * i] for i in range(40)])
HOLES = np.isnan(NUMBERS)


@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_gaps_are_filled_by_training_rows_as_by_scikit_learn(missing, tmp_path):
    table = of(tmp_path / "gaps.csv", GAPS, client="shop", missing=missing, num_clients=2)
    table.setup()
    rows = np.concatenate(table.client_split.train)
    assert len(rows) == 30
    imputer = SimpleImputer().fit(NUMBERS[rows])
    scaler = StandardScaler().fit(imputer.transform(NUMBERS[rows]))
    wanted = scaler.transform(imputer.transform(NUMBERS))
    if missing == "indicator":
        wanted = np.column_stack([wanted, HOLES])
    assert np.allclose(table.clients.images.numpy(), wanted, atol=1e-6)
    assert not np.allclose(imputer.statistics_, SimpleImputer().fit(NUMBERS).statistics_, rtol=1e-3)
    table.save_split(tmp_path / "split.npz")
    again = of(tmp_path / "gaps.csv", GAPS, client="shop", missing=missing, num_clients=2)
    again.split = str(tmp_path / "split.npz")
    again.setup()
    assert torch.equal(again.clients.images, table.clients.images)


def test_gaps_are_filled_in_the_original_unit_without_standardisation(tmp_path):
    table = of(tmp_path / "gaps.csv", GAPS, client="shop", missing="mean", num_clients=2, standardise=False)
    table.setup()
    rows = np.concatenate(table.client_split.train)
    assert np.allclose(table.clients.images.numpy(), SimpleImputer().fit(NUMBERS[rows]).transform(NUMBERS), rtol=1e-6)


def test_rows_with_gaps_are_left_out_and_counted(tmp_path):
    table = of(tmp_path / "gaps.csv", GAPS, client="shop", missing="drop", num_clients=2)
    table.setup()
    assert np.array_equal(table.source.images.numpy(), NUMBERS[~HOLES.any(1)])
    left_out = int(HOLES.any(1).sum())
    assert table.notes() == [f"data.missing: {left_out} of 40 rows lack a value and are left out"]


def test_rows_without_target_or_client_are_left_out(tmp_path):
    content = "shop,age,price\na,1,1\na,2,\n,3,3\na,,4\na,5,5\n"
    for missing, ages in (("drop", [1.0, 5.0]), ("mean", [1.0, np.nan, 5.0])):
        table = of(tmp_path / "a.csv", content, client="shop", missing=missing, partition=None)
        assert np.array_equal(inputs_of(table)[:, 0], ages, equal_nan=True)
    names = of(tmp_path / "a.csv", "age,kind\n1,x\n2,\n3,y\n", target="kind", classes=True, missing="mean").load()
    assert names.labels.tolist() == [0, 1]


def test_missing_numbers_of_an_npz_file_follow_the_same_rules(tmp_path):
    np.savez(tmp_path / "gaps.npz", x=NUMBERS, y=np.arange(40.0), shop=np.array([b"north", b"south"] * 20))
    options = {"client": "shop", "num_clients": 2}
    table = Vectors(str(tmp_path / "gaps.npz"), missing="indicator", **options)
    table.setup()
    assert table.client_split.writers.tolist() == ["north", "south"]  # bytes are texts
    assert np.array_equal(table.clients.images[:, 2:].numpy(), HOLES)
    assert np.array_equal(
        inputs_of(Vectors(str(tmp_path / "gaps.npz"), missing="drop", **options)), NUMBERS[~HOLES.any(1)]
    )
    with pytest.raises(
        UserError, match=r"14 of 80 numbers of x are NaN, the first in row 0, column 0 .* set data.miss"
    ):
        Vectors(str(tmp_path / "gaps.npz"), **options).load()


@pytest.mark.parametrize(
    ("form", "days"),
    [
        (None, ["2020-01-31", "1969-12-31", "2024-02-29 12:00", ""]),
        ("%d.%m.%Y", ["31.01.2020", "31.12.1969", "29.02.2024", "NA"]),
    ],
)
def test_dates_are_days_since_1970(form, days, tmp_path):
    content = "day,price\n" + "".join(f"{day},{i}\n" for i, day in enumerate(days))
    source = of(tmp_path / "a.csv", content, dates=["day"], date_format=form, missing="mean")
    wanted = (np.array(["2020-01-31", "1969-12-31", "2024-02-29"], "datetime64[D]").astype(float)).tolist()
    wanted[2] += 0.5 * (form is None)
    assert inputs_of(source)[:3, 0].tolist() == wanted
    assert np.isnan(inputs_of(source)[3, 0])


def test_classes_may_be_one_hot_columns(tmp_path):
    source = of(tmp_path / "a.csv", "x,red,blue\n1,1,0\n2,0,1\n3,1,0\n", target=["red", "blue"], classes=True).load()
    assert source.labels.tolist() == [1, 0, 1]  # in alphabetical order: blue, red
    for y in ([[0], [2], [1]], [[1, 0, 0], [0, 0, 1], [0, 1, 0]], [[1.0, 0, 0], [0, 0, 1], [0, 1, 0]]):
        np.savez(tmp_path / "a.npz", x=np.ones((3, 1)), y=np.array(y))
        assert Vectors(str(tmp_path / "a.npz"), classes=True).load().labels.tolist() == [0, 2, 1]


def test_true_is_1_and_row_numbers_are_noted(tmp_path):
    table = of(tmp_path / "a.csv", "id,ill,price\n1,TRUE,3\n2,false,4\n3,TRUE,5\n4,TRUE,6\n", num_clients=1)
    table.setup()
    assert table.source.images[:, 1].tolist() == [1, 0, 1, 1]
    assert table.notes() == ["data.file: the input 'id' only counts the rows; data.drop: ['id'] leaves it out"]


# --- what is refused, and the advice, followed ------------------------------------------------------------------------
def rows(*lines):
    return "\n".join(lines) + "\n"


ADVICE = {
    "unnamed": (rows(",a,price", "0,1,5", "1,2,6"), "column 1 has no name", {"drop": ["column 1"]}),
    "pandas": (rows("Unnamed: 0,a,price", "0,1,5", "1,2,6"), "column 1 has no name", {"drop": ["Unnamed: 0"]}),
    "twice": (rows("a,a,b,price", "0,1,2,5", "1,2,3,6"), "has 2 columns 'a'", {"drop": ["a"]}),
    "gap": (rows("a,price", "1,5", "?,6"), "1 of 2 values of 'a' .* the first in line 3", {"missing": "mean"}),
    "gaps": (rows("a,b,price", "1,,5", "2,,6"), "2 of 2 values of 'b' are missing", {"drop": ["b"]}),
    "no target": (rows("a,price", "1,5", "2,", "3,4"), "1 of 3 values of 'price' .* line 3", {"missing": "drop"}),
    "words": (rows("a,b,price", "1,x,5", "2,y,6"), "line 2: b is 'x', not a number", {"categories": ["b"]}),
    "words left out": (rows("a,b,price", "1,x,5", "2,y,6"), "line 2: b is 'x', not a number", {"drop": ["b"]}),
    "one word": (rows("a,b,price", "1,7,5", "2,8,6", "3,x,6"), "line 4: b is 'x', not a number", {"drop": ["b"]}),
    "iso": (rows("a,price", "2020-01-31,5", "2021-01-31,6"), "a is '2020-01-31', not a number", {"dates": ["a"]}),
    "german": (
        rows("a,price", "31.01.2020,5", "1.2.2021,6"),
        "line 2: a is '31.01.2020', not a number",
        {"dates": ["a"], "date_format": "%d.%m.%Y"},
    ),
    "decimal": (rows("a;price", "1,5;5", "2,5;6"), "line 2: a is '1,5', not a number", {"decimal": ","}),
    "names": (rows("a,price", f"{2**62 + 1},5", f"{2**62 + 2},6"), "2 of them become 1", {"categories": ["a"]}),
    "either": (rows("a;b,price", "1;2,5", "2;3,6"), r"separated by ',' \(2 columns\) or ';' \(2", {"separator": ","}),
    "not so": (rows("a:price", "1:5", "2:6"), "has no column 'price'", {"separator": ":"}),
    "classes": (rows("a,price", "1,low", "2,high"), "price is 'low', not a number", {"classes": True}),
    "labels": (
        rows("a,price,cost", "1,1,1", "2,0,1"),
        "classes are in one column, or in columns of which one is 1",
        {"labels": True, "classes": False},
    ),
}
STARTS = {"labels": {"classes": True, "target": ["price", "cost"]}}


@pytest.mark.parametrize("what", ADVICE)
def test_the_advice_of_a_refusal_leads_to_a_run(what, tmp_path):
    content, sentence, advice = ADVICE[what]
    options = {"num_clients": 1, "test_fraction": 0.0, **STARTS.get(what, {})}
    with pytest.raises(UserError, match=sentence) as caught:
        of(tmp_path / "a.csv", content, **options).setup()
    message = str(caught.value)
    for name, value in advice.items():
        assert value is False or f"data.{name}" in message or f"{name}: " in message
        assert value in (True, False, "mean") or str(value).strip("[]'") in message
    if what == "either":
        advice = {**advice, "categories": ["a;b"]}
    table = of(tmp_path / "a.csv", content, **{**options, **advice})
    trainer = DFLTrainer(
        max_rounds=1,
        callbacks=[Gossip(k=0), Uniform()],
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(DFLModule(Tabular([2], embedding=1), batch_size=2, local_epochs=1), datamodule=table)
    assert bool(table.clients.images.isfinite().all())
    assert np.isfinite(trainer.run.metrics["train_loss"]).all()


def test_the_form_of_dates_is_proposed(tmp_path):
    for days, forms in (
        (("31/01/2020", "01/02/2020"), ["%d/%m/%Y"]),
        (("01/02/2020", "01/02/2021"), ["%d/%m/%Y", "%m/%d/%Y"]),
        (("2.1.20 10:30", "2.1.21 11:30"), ["%d.%m.%y %H:%M"]),
    ):
        content = rows("a,price", *(f"{day},{i}" for i, day in enumerate(days)))
        with pytest.raises(UserError) as caught:
            of(tmp_path / "a.csv", content, dates=["a"]).load()
        assert re.findall("'(%[^']*)'", str(caught.value)) == forms
        for form in forms:
            of(tmp_path / "a.csv", content, dates=["a"], date_format=form).load()


REFUSED = {
    "quoted break": (rows("a,b,price", '1,"x\ny",5', "2,z,much"), {"categories": ["b"]}, "line 4: price is 'much'"),
    "short line": (rows("a,b,price", '"1\n\n",2,5', "3,4"), {}, "line 5: 2 values for 3 columns, separated by ','"),
    "one class": (rows("a,price", "1,low", "2,low"), {"classes": True}, "all 2 rows of a.csv are of class 'low'"),
    "overflow": (rows("a,price", "1,1e300", "2,1"), {}, r"'price' is 1e\+300 in line 2, .* divide the column"),
    "input": (rows("a,b,price", "1,2,3", "1,-1e200,4"), {}, r"'b' is -1e\+200 in line 3"),
    "float": (rows("a,price", "1e39,1", "2,1"), {"standardise": False}, r"'a' is 1e\+39 .* 32-bit numbers reach to 3"),
    "merged": (
        rows("a,price", "20000001,1", "20000000,2"),
        {"standardise": False, "num_clients": 1, "test_fraction": 0.0},
        r"'a' has whole numbers beyond 2\^24, .* 2 of them become 1; set data.standardise: true",
    ),
    "drop nothing": (text(","), {"drop": ["prize"]}, "data.drop: a.csv has no column 'prize'; did you mean 'price'"),
    "drop target": (text(","), {"drop": ["price"]}, "data.drop names price, which is target or client; take it away"),
    "all gaps": (rows("a,b,price", "1,,5", "2,,6"), {"missing": "drop"}, "each of the 2 rows lacks a value"),
    "no mean": (
        rows("a,b,price", "1,,5", "2,,6"),
        {"missing": "mean", "num_clients": 1, "test_fraction": 0.0},
        "no client trains on a value of 'b', so that it has no mean; leave it out by data.drop",
    ),
    "latin": (text(",").replace("north", "Köln").encode("latin-1"), {}, "is not in UTF-8 .* 'CSV UTF-8'"),
    "no gz": (text(",").encode(), {"name": "a.csv.gz"}, r"cannot be read \(Not a gzipped file"),
    "torn gz": (gzip.compress(text(",").encode())[:-9], {"name": "a.csv.gz"}, "cannot be read"),
    "both": (text(","), {"dates": ["town"], "categories": ["town"]}, "data.dates and data.categories both name town"),
    "numbers": (text(","), {"dates": ["town"], "drop": ["shop"]}, "town is '5.0', not a date as in ISO 8601"),
    "form": (text(","), {"date_format": "%d"}, "data.date_format is of columns in data.dates"),
    "rule": (text(","), {"missing": "median"}, "missing=median; it is one of refuse, drop, mean, indicator"),
    "sign": (text(","), {"decimal": "·"}, "decimal='·'; it is a point or a comma"),
    "separator": (text(","), {"separator": ", "}, "data.separator=', '; it is one character, tab or space"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_tables_are_refused_in_one_sentence(what, tmp_path):
    content, options, sentence = REFUSED[what]
    options = dict(options)
    file = tmp_path / options.pop("name", "a.csv")
    with pytest.raises(UserError, match=sentence):
        of(file, content, **options).setup()


def test_npz_files_that_are_none_are_refused_in_one_sentence(tmp_path):
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "objects.npz", x=np.ones((2, 1)), y=np.array(["a", None], object))
    np.savez(tmp_path / "large.npz", x=np.array([[2**62], [2**62 + 1]]), y=np.ones(2))
    np.savez(tmp_path / "bytes.npz", x=np.ones((2, 1)), y=np.array([b"\xff", b"a"]))
    np.savez(tmp_path / "mixed.npz", x=np.ones((2, 1)), y=np.array([[1, 1], [0, 1]]))
    for name, sentence in (
        ("one", r"is a single array \(.npy\) by another name; save arrays by numpy.savez"),
        ("empty", "empty.npz is empty; save arrays by numpy.savez"),
        ("objects", "it holds Python objects; save texts as"),
        ("bytes", "y holds bytes that are not in UTF-8"),
        ("mixed", r"y is \[2, 2\], and classes are \[N\], \[N, 1\], or one-hot"),
    ):
        with pytest.raises(UserError, match=sentence):
            Vectors(str(tmp_path / f"{name}.npz"), classes=True).load()
        if name in ("one", "empty"):
            with pytest.raises(UserError, match=sentence):
                Series(str(tmp_path / f"{name}.npz")).load()
    with pytest.raises(UserError, match=r"x has whole numbers beyond 2\^53, .* 2 of them become 1"):
        Vectors(str(tmp_path / "large.npz")).load()


# --- data frames ------------------------------------------------------------------------------------------------------
def test_a_data_frame_is_read_like_its_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "shop": ["north", "south", None, "south"],
            "age": [1.5, None, 3.0, 4.0],
            "count": pandas.array([1, None, 3, 4], dtype="Int64"),
            "ill": [True, False, True, True],
            "day": pandas.to_datetime(["2020-01-31", None, "2020-02-01", "2020-02-02"]),
            "town": pandas.Categorical(["a", "b", None, "a"]),
            "price": [10, 20, 60, 30],
        },
        index=[7, 8, 9, 10],
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    options = {"target": "price", "categories": ["town", "shop"], "dates": ["day"], "missing": "indicator"}
    one, other = Vectors(frame, **options).load(), Vectors(str(tmp_path / "a.csv"), **options).load()
    assert np.array_equal(one.images.numpy(), other.images.numpy(), equal_nan=True)
    assert torch.equal(one.labels, other.labels)
    assert one.words == other.words
    with pytest.raises(UserError, match=r"DataFrame: 1 of 4 values of 'age' are missing, the first in row 1 \(counted"):
        Vectors(frame, target="price", categories=["town", "shop"], dates=["day"]).load()
    frame.columns = ["price"] * 7
    with pytest.raises(UserError, match="has 7 columns 'price'"):
        Vectors(frame, target="price").load()


def test_a_config_names_a_data_frame_without_its_content():
    pandas = pytest.importorskip("pandas")
    texts = []
    for age in (41.25, 41.25, 41.5):
        writer = Writer()
        texts.append(writer.write(pandas.DataFrame({"age": [age]}), "data.file"))
        assert writer.not_makeable == {"data.file": texts[-1]}
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("data frame [1, 1] ")
    assert "41.25" not in texts[0]


def test_pandas_and_the_reader_agree_on_what_is_missing(tmp_path):
    pandas = pytest.importorskip("pandas")
    words = ["", "NA", "N/A", "NaN", "nan", "null", "None", "#N/A", "<NA>", "n/a", "NULL", "-nan", "1", "2.5e3", "-0.5"]
    content = rows("a,price", *(f"{word},{i}" for i, word in enumerate(words)))
    found = inputs_of(of(tmp_path / "a.csv", content, missing="mean"))[:, 0]
    assert np.array_equal(found, pandas.read_csv(tmp_path / "a.csv")["a"].to_numpy(), equal_nan=True)


def test_other_objects_are_refused(tmp_path):
    class Polars:
        def to_pandas(self):
            raise AssertionError

    for thing, sentence in ((Polars(), "give its to_pandas()"), ([1, 2], "data.file is a list; give the path of a")):
        with pytest.raises(UserError, match=re.escape(sentence)):
            Vectors(thing, target="a").load()
