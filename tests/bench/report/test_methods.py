"""Methods as groups of runs, and the sentences on their differences."""

from html import escape
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from dfl_lightning.bench.report.charts.colours import colour_places, dash_at
from dfl_lightning.bench.report.comparable import best_first
from dfl_lightning.bench.report.look.theme import LIGHT
from dfl_lightning.bench.report.method_names import base_name
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.over_seeds import over_seeds, paired, thinned
from dfl_lightning.bench.report.page.sentences.verdict import lines, sentences
from dfl_lightning.bench.report.settings.differences import differences
from dfl_lightning.bench.stats.statistics import paired_interval
from dfl_lightning.runs.reading import read_run

AFIND = {
    "selection": {"class_path": "AFIND", "init_args": {"nu": 0.2}},
    "threshold": {"class_path": "AdaptiveThreshold"},
}


def test_runs_that_differ_only_in_their_seed_are_a_method(tmp_path, make_run):
    how = {2: {}, 0: {"trainer": {"accelerator": "gpu", "max_rounds": 1}}, 1: {"monitors": ["Fairness"]}}
    runs = [read_run(make_run(tmp_path / f"{s}", [[0.5, 0.6]], seed=s, config={**AFIND, **how[s]})) for s in how]
    (method,) = find_methods(runs)
    assert (method.name, method.seeds) == ("AFIND+", [0, 1, 2])


def test_methods_of_one_name_are_distinguished_by_their_settings(tmp_path, make_run):
    other = {**AFIND, "selection": {"class_path": "AFIND", "init_args": {"nu": 0.4}}}
    runs = [read_run(make_run(tmp_path / str(i), [[0.5, 0.6]], config=c)) for i, c in enumerate((AFIND, other))]
    assert [m.name for m in find_methods(runs)] == ["AFIND+ (nu = 0.2)", "AFIND+ (nu = 0.4)"]
    assert [m.name for m in find_methods(runs, ["a", "a"])] == ["a"]
    assert [m.name for m in find_methods([*runs, runs[0]], ["", "a", ""])] == ["AFIND+", "a"]


def test_name_has_the_differing_class_without_its_arguments(tmp_path, make_run):
    server = {"topology": "server", "selection": {"class_path": "Gossip", "init_args": {"k": "all"}}}
    dropout = {"class_path": "GroupedCount", "init_args": {"rate": 0.5, "full_first_round": True}}
    configs = ({**server, "dropout": dropout}, {**server, "dropout": None, "monitors": ["Fairness"]})
    runs = [read_run(make_run(tmp_path / str(i), [[0.5, 0.6]], config=c)) for i, c in enumerate(configs)]
    assert [m.name for m in find_methods(runs)] == ["FedAvg, dropped clients left out", "FedAvg"]


def test_name_has_the_settings_that_distinguish_methods(tmp_path, make_run):
    model = {"local_epochs": 5, "batch_size": 16, "finetune_epochs": 1}
    other, last = ({"local_epochs": epochs, "batch_size": 5, "finetune_epochs": 0} for epochs in (2, 3))
    configs = [{**AFIND, "model": found} for found in (model, other, last)]
    runs = [read_run(make_run(tmp_path / str(i), [[0.5, 0.6]], config=c)) for i, c in enumerate(configs)]
    assert [m.name for m in find_methods(runs)] == [f"AFIND+ (local_epochs = {n}, …)" for n in (5, 2, 3)]
    pair = [{**AFIND, "topology": "ring", "model": model}, {**AFIND, "topology": "complete", "model": other}]
    runs = [read_run(make_run(tmp_path / f"p{i}", [[0.5, 0.6]], config=c)) for i, c in enumerate(pair)]
    assert [m.name for m in find_methods(runs)] == ["AFIND+ (topology = ring, …)", "AFIND+ (topology = complete, …)"]


def test_runs_without_configs_are_never_merged(tmp_path, make_run):
    runs = [read_run(make_run(tmp_path / str(i), [[0.5] * (4 + i)], policies=["Gossip"])) for i in (0, 1)]
    assert [m.name for m in find_methods(runs)] == [
        "Gossip (clients = 4, unknown = all, of 0)",
        "Gossip (clients = 5, unknown = all, of 1)",
    ]
    runs = [read_run(make_run(tmp_path / "new" / str(i), [[0.5] * (4 + i)], status=None)) for i in (0, 1)]
    assert [m.name for m in find_methods(runs)] == ["new (unknown = all, of 0)", "new (unknown = all, of 1)"]


def test_method_that_receives_nothing_trains_alone(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", [[0.5, 0.6]], received=0.0, config=AFIND))
    (method,) = find_methods([run])
    assert (method.name, method.is_local) == ("Local", True)


def test_method_with_only_diverged_clients_is_not_training_alone(tmp_path, make_run):
    """They received nothing, but another method is not compared with them as with a baseline."""
    both = [(r, i) for r in range(2) for i in range(2)]
    found = []
    for k in (0, 5):
        config = {"selection": {"class_path": "Gossip", "init_args": {"k": k}}}
        folder = make_run(tmp_path / str(k), [[0.1, 0.1]] * 2, received=0.0, config=config, diverged=both)
        found += find_methods([read_run(folder)])
    assert [(method.name, method.is_local) for method in found] == [("Local", True), ("Gossip", False)]
    assert found[1].notes == ["seed 0: the training of 2 clients diverged"]


def test_a_note_on_several_seeds_is_written_once(tmp_path, make_run):
    folders = [
        make_run(tmp_path / str(s), [[0.5]] * 2, seed=s, config=AFIND, diverged=[(0, 0)] if s else [], status=status)
        for s, status in enumerate(("stopped", "finished", "finished"))
    ]
    (method,) = find_methods([read_run(folder) for folder in folders])
    assert method.notes == ["seed 0: stopped after 2 rounds", "seeds 1, 2: the training of 1 client diverged"]


def test_pairs_have_the_same_seed_and_the_same_test_images(tmp_path, make_run):
    def method(name, seeds, images):
        config = {"selection": {"class_path": name}}
        made = [
            make_run(tmp_path / f"{name}{s}", [[0.5, 0.6]], seed=s, config=config, test_images=images) for s in seeds
        ]
        return find_methods([read_run(folder) for folder in made])[0]

    a, b = method("A", [0, 1, 2], np.arange(20)), method("B", [1, 2, 3], np.arange(20))
    c = method("C", [0, 1], np.arange(20)[::-1])
    assert [(x.path.name, y.path.name) for x, y in paired(a, b)] == [("A1", "B1"), ("A2", "B2")]
    assert paired(a, c) == []


def test_tasks_are_what_is_tested_on_the_same_images(tmp_path, make_run):
    made = []
    for name, images in (("A", 0), ("B", 1), ("C", 0)):
        config = {"selection": {"class_path": name}}
        made.append(make_run(tmp_path / name, [[0.5, 0.6]], config=config, test_images=np.arange(20) + images))
    assert [m.task for m in find_methods([read_run(folder) for folder in made])] == [0, 1, 0]


def test_a_difference_has_students_interval():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6))
    found = paired_interval(list(zip(a, b, strict=True)))
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(a - b), low, high))
    assert found.is_clear == (low > 0 or high < 0)


def verdict(tmp_path, make_run, **levels):
    """Return the sentences on methods with one accuracy for each seed."""
    runs = []
    for name, accuracies in levels.items():
        for seed, accuracy in enumerate(accuracies):
            config, cost = {"selection": {"class_path": name}}, 0.0 if name == "Alone" else 1.0
            folder = make_run(tmp_path / name / str(seed), [[accuracy] * 2], seed=seed, config=config, received=cost)
            runs.append(read_run(folder))
    return " ".join(sentences(find_methods(runs)))


def test_only_clear_differences_are_stated(tmp_path, make_run):
    words = verdict(tmp_path, make_run, Best=[0.9, 0.91, 0.92], Clear=[0.8, 0.812, 0.818], Near=[0.95, 0.8, 0.9])
    assert words.startswith("Best ends at 91.0 ± 1.0 % test accuracy (3 seeds).")
    assert "Clear is 10.0 points lower" in words
    assert "The seeds show no clear difference to Near (3 common seeds, simultaneous 95 % interval" in words


def test_the_gain_over_training_alone_is_said(tmp_path, make_run):
    words = verdict(tmp_path, make_run, Best=[0.9, 0.91, 0.92], Alone=[0.7, 0.712, 0.718])
    assert "That is 20.0 points above training alone (simultaneous 95 % interval +" in words
    assert "Local" not in words


def test_lead_is_short(tmp_path, make_run):
    levels = {"Best": [0.9, 0.91, 0.92, 0.91], "Clear": [0.8, 0.812, 0.818, 0.81], "Near": [0.95, 0.8, 0.9, 0.9]}
    levels |= {"Worse": [0.75, 0.757, 0.773, 0.76], "Alone": [0.7, 0.712, 0.718, 0.71]}
    long = verdict(tmp_path, make_run, **levels)
    methods = find_methods([read_run(tmp_path / name / str(seed)) for name in levels for seed in range(4)])
    assert sentences(methods, brief=True) == [
        "Best ends at 91.0 ± 0.8 % test accuracy (4 seeds), 20.0 points above training alone.",
        "The seeds show no clear difference to Near.",
        "Clear and Worse are 10.0 to 15.0 points lower.",
    ]
    assert long.count("95 % interval") == 3
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report.page.assemble import page

    text = page(methods)
    top = text.partition("<p class='lead'>")[2].partition("</header>")[0]
    assert "interval" not in top
    lines = top.partition("<ul class='qualified'>")[2]
    assert all(f"<li>{sentence}</li>" in lines for sentence in sentences(methods, brief=True)[1:])
    assert """<li class='whole'><a href="#said-1">The verdict in full</a></li>""" in top
    assert f"<p class='say' id='said-1'>{escape(long)}</p>" in text.partition('id="verdict"')[2]


def test_seed_means_are_over_evaluated_rounds(tmp_path, make_run):
    levels = np.array([[0.2, 0.4], [0.6, 0.8], [0.5, 0.7]])
    levels_of_other = levels + 0.1
    levels_of_other[1] = np.nan
    runs = [
        read_run(make_run(tmp_path / str(s), level, seed=s, config=AFIND))
        for s, level in enumerate((levels, levels_of_other))
    ]
    curve = over_seeds(find_methods(runs)[0], "test_acc")
    assert curve["round"].tolist() == [0, 1, 2]
    assert curve["count"].tolist() == [2, 1, 2]
    assert curve["mean"] == pytest.approx([0.35, 0.7, 0.65])
    assert curve["sd"][[0, 2]] == pytest.approx([0.1 / np.sqrt(2)] * 2)
    assert np.isnan(curve["sd"][1])


def test_curves_of_early_stopped_runs_end_at_table_means(tmp_path, make_run):
    """Early stopping ends one seed after two rounds and the other after four: the curve is of both until its end."""
    levels = {0: [[0.3], [0.4]], 1: [[0.5], [0.6], [0.7], [0.8]]}
    config = {**AFIND, "trainer": {"max_rounds": 9}}
    runs = [
        read_run(make_run(tmp_path / str(s), level, seed=s, config=config, received=1e6)) for s, level in levels.items()
    ]
    methods = find_methods(runs)
    curve = over_seeds(methods[0], "test_acc")
    assert curve["count"].tolist() == [2] * 4
    assert curve["mean"] == pytest.approx([0.4, 0.5, 0.55, 0.6])
    assert curve["mean"][-1] == pytest.approx(lines(methods)[0].score.mean)
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report.page.pictures import rows_of
    from dfl_lightning.bench.report.page.sections import figures

    drawn = {figure.name: figure for figure in figures(methods)}
    ended = " A run that ends before others of its method counts with its last number then."
    for name, last in (("learning-curves", {"mean": 60.0}), ("accuracy-by-bytes", {"cost": 3.0, "accuracy": 60.0})):
        end = rows_of(drawn[name].spec)[-1]
        assert {key: end[key] for key in last} | {"round": end["round"]} == pytest.approx({**last, "round": 4})
        assert ended in drawn[name].note
    unfinished = read_run(make_run(tmp_path / "2", [[0.1]], seed=2, config=config, status="stopped"))
    assert over_seeds(find_methods([*runs, unfinished])[0], "test_acc")["count"].tolist() == [3, 2, 2, 2]
    assert not any(ended in figure.note for figure in figures(find_methods(runs[:1])))


def test_long_curves_are_thinned_and_keep_both_ends():
    kept = thinned(1001, 200)
    assert len(kept) == 200
    assert (kept[0], kept[-1]) == (0, 1000)
    assert np.diff(kept).max() <= 6


def test_the_best_is_chosen_over_the_seeds_that_methods_share(tmp_path, make_run):
    """A is ahead on the hard seeds 0 and 1; over its own seeds B has the higher mean, with the easy seed 2."""
    words = verdict(tmp_path, make_run, B=[0.7, 0.7, 0.7, 0.99], A=[0.75, 0.7501, 0.7502])
    assert words.startswith(
        "A ends at 75.0 ± 0.0 % test accuracy (3 seeds). Methods have different seeds: the best is chosen over the 3 "
        "seeds of A and B. B is 5.0 points lower (simultaneous 95 % interval −5.0 to −5.0)."
    )
    methods = find_methods([read_run(folder) for folder in sorted(tmp_path.glob("*/*"), reverse=True)])
    assert [method.name for method in best_first(methods)] == ["A", "B"]


def test_method_with_missing_seeds_is_compared_by_common_seeds_only(tmp_path, make_run):
    """C has three of five seeds and is ahead on all: over the five that A and B have it has no mean."""
    words = verdict(
        tmp_path, make_run, A=[0.8, 0.81, 0.85, 0.82, 0.82], B=[0.7, 0.71, 0.75, 0.7201, 0.72], C=[0.9, 0.9101, 0.95]
    )
    assert words.startswith(
        "A ends at 82.0 ± 1.9 % test accuracy (5 seeds). C lacks seeds of the others, among which the best is chosen. "
        "B is 10.0 points lower"
    )
    assert words.endswith("Over the seeds in common with the best, C is 10.0 points higher (3 common seeds).")


def without_a_loss(folder, client=0):
    """Make the last test loss of a client infinite, and its accuracy NaN."""
    with np.load(folder / "clients.npz") as file:
        arrays = dict(file)
    arrays["test_loss"] = np.full_like(arrays["test_acc"], 0.5)
    arrays["test_loss"][-1, client], arrays["test_acc"][-1, client] = np.inf, np.nan
    np.savez(folder / "clients.npz", **arrays)


def test_method_with_an_infinite_loss_is_not_compared(tmp_path, make_run):
    levels = {"Best": [0.8, 0.81, 0.82], "Worse": [0.7, 0.71, 0.7201]}
    before = verdict(tmp_path / "before", make_run, **levels)
    for seed, level in enumerate((0.9, 0.91, 0.9201)):
        make_run(
            tmp_path / "Broken" / str(seed), [[level] * 2], seed=seed, config={"selection": {"class_path": "Broken"}}
        )
    without_a_loss(tmp_path / "Broken" / "0")
    runs = [read_run(tmp_path / "before" / name / str(seed)) for name in levels for seed in range(3)]
    broken = [read_run(tmp_path / "Broken" / str(seed)) for seed in range(3)]
    said = "In Broken a client's loss or accuracy on test data is not finite: there is no mean."
    assert " ".join(sentences(find_methods([*broken, *runs]))) == f"{said} {before}"
    assert sentences(find_methods(broken)) == [said]
    (line,) = [line for line in lines(find_methods([*broken, *runs])) if line.method.name == "Broken"]
    assert (line.to_best, line.is_best) == (None, False)
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report.page.sections import figures

    for with_broken in (True, False):
        (drawn,) = (f for f in figures(find_methods([*broken * with_broken, *runs])) if f.name == "clients")
        assert drawn.note.endswith(" Clients whose loss or score is not finite are left out.") == with_broken


# --- a user's own classes with names of the library -------------------------------------------------------------------
OWN = [
    ({"selection": {"class_path": "mine.AFIND"}}, "mine.AFIND"),
    ({"selection": {"class_path": "mine.AFIND"}, "threshold": "AdaptiveThreshold"}, "mine.AFIND"),
    ({"selection": "AFIND", "threshold": "mine.AdaptiveThreshold"}, "AFIND"),
    ({"selection": {"class_path": "mine.Gossip", "init_args": {"k": 3}}}, "mine.Gossip"),
    ({"selection": {"class_path": "mine.Ours"}}, "Ours"),
    ({"selection": "dfl_lightning.callbacks.selection.afind.AFIND"}, "AFIND"),
    ({"selection": "Gossip", "objective": {"class_path": "mine.FedProx"}}, "mine.FedProx"),
    ({"selection": "Gossip", "aggregation": {"class_path": "mine.Median"}}, "Gossip"),
    ({"selection": "Gossip", "outgoing": [{"class_path": "mine.TopK"}]}, "Gossip"),
]


@pytest.mark.parametrize(("config", "name"), OWN, ids=str)
def test_own_class_is_not_taken_for_the_librarys(tmp_path, make_run, config, name):
    assert base_name(read_run(make_run(tmp_path / "run", [[0.5]], config=config))) == name


def test_own_class_is_named_with_its_module_beside_the_librarys(tmp_path, make_run):
    paths = ["dfl_lightning.callbacks.AFIND", "mine.AFIND"]
    configs = [{"selection": {"class_path": path}} for path in paths]
    runs = [read_run(make_run(tmp_path / str(i), [[0.5]], config=config)) for i, config in enumerate(configs)]
    assert sorted(method.name for method in find_methods(runs)) == ["AFIND", "mine.AFIND"]


# --- nothing false ----------------------------------------------------------------------------------------------------
SERVER = {"topology": "server", "selection": {"class_path": "Gossip", "init_args": {"k": "all"}}}
ALL = {"selection": {"class_path": "Gossip", "init_args": {"k": "all"}}}
WITHIN = {"k": "all", "within": "cluster"}
DOWN = {"dropout": {"class_path": "GroupedCount"}}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({**SERVER, **DOWN, "substitution": {"class_path": "FDMS"}}, "FL-FDMS"),
        ({**SERVER, **DOWN, "substitution": {"class_path": "Stale"}}, "Stale"),
        ({**SERVER, **DOWN, "substitution": None}, "FedAvg, dropped clients left out"),
        ({**SERVER, "dropout": None, "substitution": {"class_path": "FDMS"}}, "FedAvg"),
        ({"selection": {"class_path": "Gossip"}, "aggregation": {"class_path": "BALANCE"}}, "BALANCE"),
        (
            {"selection": {"class_path": "Gossip"}, "aggregation": {"class_path": "GeometricMedian"}},
            "Geometric median",
        ),
        ({**AFIND, "aggregation": {"class_path": "Median"}}, "AFIND+, median"),
        ({"selection": {"class_path": "Gossip"}, "aggregation": {"class_path": "Uniform"}}, "Gossip"),
        ({**AFIND, "objective": {"class_path": "FedProx"}}, "AFIND+ with FedProx"),
        ({**SERVER, "objective": {"class_path": "user.Theirs"}}, "Theirs"),
        ({**SERVER, **DOWN, "model": {"finetune_epochs": 1}}, "FedAvg-FT, dropped clients left out"),
        ({**ALL, "topology": {"generator": "base_graph", "args": {"k": 3}}}, "Base-4 graph"),
        ({**ALL, "topology": "el_local", "aggregation": {"class_path": "Median"}}, "EL-Local, median"),
        ({**ALL, "topology": "el_local", "objective": {"class_path": "Ditto"}}, "Ditto"),
        ({**ALL, "topology": "ring"}, "Gossip"),
        ({**ALL, "topology": "mine/el_local.yaml"}, "Gossip"),
        ({"topology": "el_local", "selection": {"class_path": "Gossip", "init_args": {"k": 2}}}, "Gossip"),
        ({"topology": "el_local", "selection": {"class_path": "Gossip", "init_args": WITHIN}}, "Gossip"),
    ],
    ids=str,
)
def test_methods_are_named_after_their_settings(tmp_path, make_run, config, name):
    (method,) = find_methods([read_run(make_run(tmp_path / "run", [[0.5, 0.6]], config=config))])
    assert method.name == name


CALLED = {
    **{"apfl": "APFL", "choco": "CHOCO-SGD", "d2": "D2", "dfedsam": "DFedSAM", "dispfl": "Dis-PFL", "ditto": "Ditto"},
    **{"dpfl": "DPFL", "dsgd": "D-SGD", "fdms": "FL-FDMS", "fedavg": "FedAvg", "federico": "FedeRiCo"},
    **{"fedfomo": "FedFomo", "fedproto": "FedProto", "fedrep": "FedRep", "gossip": "Gossip", "ifca": "IFCA"},
    **{"gradient_tracking": "gradient tracking", "knn_per": "kNN-Per", "moon": "MOON", "pacfl": "PACFL"},
    **{"panm_grad": "PANM", "pens": "PENS", "per_fedavg": "Per-FedAvg", "pfedgraph": "pFedGraph"},
    **{"epidemic": "EL-Local", "one_peer": "One-peer exponential", "base_graph": "Base-2 graph"},
    **{"fedavg_ft": "FedAvg-FT", "push_sum": "push-sum", "qg_dsgdm": "QG-DSGDm", "afind": "AFIND+"},
}


@pytest.mark.parametrize("config", CALLED)
def test_shipped_configs_are_named_after_their_method(tmp_path, make_run, config):
    text = (Path(__file__).parents[3] / "configs" / f"{config}.yaml").read_text()
    about = {key: {"class_path": v} if isinstance(v, str) else v for key, v in yaml.safe_load(text).items()}
    about["topology"] = yaml.safe_load(text).get("topology")
    (method,) = find_methods([read_run(make_run(tmp_path / "run", [[0.5, 0.6]], config=about))])
    assert method.name == CALLED[config]


def test_monitors_are_not_settings(tmp_path, make_run):
    configs = [{**AFIND, "monitors": ["SimulatedTime"]}, AFIND]
    runs = [read_run(make_run(tmp_path / str(s), [[0.5]], seed=s, config=c)) for s, c in enumerate(configs)]
    assert [m.name for m in find_methods(runs)] == ["AFIND+"]


def test_runs_of_other_code_are_another_method(tmp_path, make_run):
    code = [{"mine": "a" * 64, "nets": "c" * 64}, {"mine": "b" * 64}, {"mine": "b" * 64}, {"mine": "unknown"}, {}]
    code.append({"mine": "unknown"})
    configs = [{**AFIND, "code": own} if own else AFIND for own in code]
    runs = [read_run(make_run(tmp_path / str(s), [[0.5]], seed=s, config=c)) for s, c in enumerate(configs)]
    methods = find_methods(runs)
    assert [method.seeds for method in methods] == [[0], [1, 2], [3], [4], [5]]
    assert [m.name for m in methods[:2]] == [f"AFIND+ (mine = source {8 * letter}, …)" for letter in "ab"]
    assert differences(methods[:2]) == {"sources.mine": ["source aaaaaaaa", "source bbbbbbbb"]}
    assert differences([methods[0], methods[3]]) == {}


def test_short_trial_run_does_not_replace_the_run(tmp_path, make_run):
    long = make_run(tmp_path / "1", [[0.8, 0.9]] * 30, config={**AFIND, "trainer": {"max_rounds": 30}})
    quick = make_run(tmp_path / "2", [[0.1, 0.1]], config={**AFIND, "trainer": {"max_rounds": 1}})
    (method,) = find_methods([read_run(folder) for folder in (long, quick)])
    assert [run.path for run in method.runs] == [long]
    assert method.notes == ["seed 0 was run more than once; the run with most rounds counts"]


def test_of_equal_runs_the_latest_counts(tmp_path, make_run):
    runs = [make_run(tmp_path / name, [[0.5]], config=AFIND) for name in ("1", "2")]
    (method,) = find_methods([read_run(folder) for folder in runs])
    assert [run.path.name for run in method.runs] == ["2"]
    assert method.notes == ["seed 0 was run more than once; the latest run counts"]


def compared(tmp_path, make_run, **odd):
    """Return the sentences on three methods; C is the best, and its runs are made with `odd`."""
    runs = []
    for name, level, more in (("A", 0.5, {}), ("B", 0.6, {}), ("C", 0.9, odd)):
        for seed in (0, 1, 2):
            config = {"selection": {"class_path": name}, "trainer": {"max_rounds": more.get("planned", 4)}}
            rounds = [[level + seed / 100] * 2] * more.get("rounds", 4)
            options = {key: value for key, value in more.items() if key not in ("planned", "rounds")}
            runs.append(read_run(make_run(tmp_path / f"{name}{seed}", rounds, seed=seed, config=config, **options)))
    return sentences(find_methods(runs))


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"planned": 1, "rounds": 1}, "1 round, not 4"),
        ({"planned": 4, "rounds": 2, "status": "stopped"}, "stopped after 2 of 4 rounds"),
        ({"planned": 4, "rounds": 3, "status": None}, "not finished after 3 of 4 rounds"),
        ({"diverged": [(0, 0), (1, 0), (1, 1)]}, "all clients diverged"),
        ({"diverged": [(0, 1)]}, "1 of 2 clients diverged"),
    ],
    ids=["other rounds", "stopped", "running", "all diverged", "one diverged"],
)
def test_incomparable_methods_are_named_first_and_left_out(tmp_path, make_run, odd, reason):
    first, second, *rest = compared(tmp_path, make_run, **odd)
    assert first == f"Not compared: C: {reason}."
    assert second == "B ends at 61.0 ± 1.0 % test accuracy (3 seeds)."
    assert not any("C" in sentence for sentence in rest)


def test_finished_runs_are_compared(tmp_path, make_run):
    assert compared(tmp_path, make_run)[0] == "C ends at 91.0 ± 1.0 % test accuracy (3 seeds)."


@pytest.mark.parametrize("seeds", [1, 5])
def test_long_list_of_methods_names_three_and_counts_others(tmp_path, make_run, seeds):
    runs = []
    for k in range(8):
        for seed in range(seeds):
            config = {"selection": {"class_path": f"M{k}"}}
            rounds = [[0.9 - k / 10 + seed / 100] * 2] * 2
            runs.append(read_run(make_run(tmp_path / f"{k}-{seed}", rounds, seed=seed, config=config)))
    methods = find_methods(runs)
    last = sentences(methods)[-1]
    if seeds == 1:
        assert sentences(methods, brief=True)[-1] == (
            "With one common seed there is no verdict on the difference to 7 other methods: it takes 5 or more."
        )
        assert last == (
            "With one common seed there is no verdict on the difference to M1, M2, M3 and 4 others: for 8 "
            "methods it takes 5 seeds or more, since all pairs are corrected together."
        )
    else:
        assert last.startswith("M1 is 10.0 points lower (simultaneous 95 % interval ")
        assert last.count("95 % interval") == 1  # the next two are in its manner
        assert last.endswith("; 4 others are 40.0 to 70.0 points lower.")
        assert [f"M{k} " in last for k in range(1, 8)] == [True] * 3 + [False] * 4


def test_one_seed_that_stopped_is_left_out_of_its_method(tmp_path, make_run):
    config = {**AFIND, "trainer": {"max_rounds": 2}}
    folders = [make_run(tmp_path / str(s), [[0.5], [0.5 + s / 10]], seed=s, config=config) for s in (0, 1)]
    folders.append(make_run(tmp_path / "2", [[0.1]], seed=2, config=config, status="stopped"))
    first, second, *_ = sentences(find_methods([read_run(folder) for folder in folders]))
    assert first == "Not compared: AFIND+, seed 2: stopped after 1 of 2 rounds."
    assert second == "AFIND+ ends at 55.0 ± 7.1 % test accuracy (2 seeds)."


def test_unfinished_run_names_its_progress(tmp_path, make_run):
    config = {**AFIND, "trainer": {"max_rounds": 400}}
    run = read_run(make_run(tmp_path / "run", [[0.9]] * 79, config=config, status=None))
    assert sentences(find_methods([run])) == [
        "AFIND+: not finished after 79 of 400 rounds.",
        "The last evaluation gives 90.0 % test accuracy (one seed).",
    ]


def test_evaluated_but_incomparable_runs_are_not_called_unevaluated(tmp_path, make_run):
    runs = []
    for name, more in (("A", {"status": "stopped"}), ("B", {"diverged": [(0, 1)]})):
        runs.append(
            read_run(make_run(tmp_path / name, [[0.5, 0.6]], config={"selection": {"class_path": name}}, **more))
        )
    assert sentences(find_methods(runs)) == [
        "Not compared: A: stopped after 1 round; B: 1 of 2 clients diverged.",
        "No run can be compared, so there is no verdict.",
    ]
    assert sentences(find_methods([read_run(make_run(tmp_path / "C", [[np.nan, np.nan]]))])) == [
        "No run was evaluated on test data, so there is no verdict."
    ]
    folder = make_run(tmp_path / "D", [[np.nan, np.nan]])
    metrics = (
        (folder / "metrics.csv").read_text().replace("test_acc", "global_test_acc").replace("0,1.0,,", "0,1.0,0.5,")
    )
    (folder / "metrics.csv").write_text(metrics)
    assert sentences(find_methods([read_run(folder)])) == [
        "No client has test data, so there is no verdict; the numbers of the server's model are in the column "
        "global_test_acc."
    ]


def test_every_reason_against_seeds_of_a_single_method_is_named(tmp_path, make_run):
    odd = ({"status": "stopped"}, {"diverged": [(0, 1)]})
    folders = [make_run(tmp_path / str(s), [[0.5, 0.7]], seed=s, config=AFIND, **more) for s, more in enumerate(odd)]
    first, second = sentences(find_methods([read_run(folder) for folder in folders]))
    assert first == "AFIND+, seed 0: stopped after 1 round; AFIND+, seed 1: 1 of 2 clients diverged."
    assert second == "The last evaluation gives 60.0 ± 0.0 % test accuracy (2 seeds)."
    without_a_loss(folders[0])
    assert sentences(find_methods([read_run(folders[0])])) == [
        "AFIND+: stopped after 1 round.",
        "At the last evaluation a client's loss or accuracy on test data is not finite.",
    ]


def test_methods_of_a_comparison_have_distinct_colours_and_dashes(tmp_path, make_run):
    """The number of other methods and the order of all do not matter."""
    runs = []
    for task, names in enumerate(("ab", "cdefgh", "ij")):
        for name in names:
            images = np.arange(20) + task
            config = {"selection": {"class_path": f"x.{name}"}}
            runs.append(read_run(make_run(tmp_path / name, [[0.5, 0.6]], config=config, test_images=images)))
    order = [runs[i] for i in (0, 2, 8, 3, 4, 1, 5, 6, 9, 7)]
    methods = find_methods(order)
    colours = len(LIGHT["category"])
    for task in {method.task for method in methods}:
        places = [colour_places(method.among).index(method.name) for method in methods if method.task == task]
        assert len({place % colours for place in places}) == len(places)
    names = [f"M{i}" for i in range(84)]
    at = [colour_places(names).index(name) for name in names]
    assert len({(place % colours, tuple(dash_at(place))) for place in at}) == 84
    assert colours - 1 not in {place % colours for place in at}


@pytest.mark.parametrize("others", [0, 1, 6, 7, 30])
def test_only_training_alone_is_grey(others):
    names, colours = [f"M{i}" for i in range(others)], len(LIGHT["category"])
    for order in ([*names, "Local"], ["Local", *names]):
        found = colour_places(order)
        assert {name for name in found if name.strip()} == {*names, "Local"}
        assert [found.index(name) // colours for name in names] == [at // (colours - 1) for at in range(others)]
        assert {name for at, name in enumerate(found) if at % colours == colours - 1 and name.strip()} == {"Local"}
        assert len(set(found)) == len(found)
