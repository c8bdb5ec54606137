"""A table of five hospitals as it comes out of a spreadsheet leads to a run."""

import numpy as np
import pytest
from hospitals import HOSPITALS, write_patients

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks
from dfl_lightning.data import Vectors
from dfl_lightning.models import Tabular
from dfl_lightning.runs.tables import read_metrics

OPTIONS = {
    "target": "readmitted",
    "classes": True,
    "client": "hospital",
    "num_clients": 5,
    "categories": ["ward"],
    "dates": ["admitted"],
    "date_format": "%d.%m.%Y",
    "decimal": ",",
    "missing": "indicator",
    "drop": ["column 1"],
}


def test_refusals_of_a_spreadsheets_file_lead_to_data(tmp_path):
    """A user reads one sentence after the other, and does what it says."""
    write_patients(tmp_path / "patients.csv")
    given = {name: OPTIONS[name] for name in ("target", "client", "num_clients", "classes")}
    for sentence, remedy in (
        ("column 1 has no name", ["drop"]),
        ("line 2: ward is '.', not a number; set data.categories: .'ward'.", ["categories"]),
        (
            "line 2: weight is '.*', not a number; if the comma stands before decimals, set data.decimal: ','",
            ["decimal"],
        ),
        (r"admitted is '.*', not a number; set data.dates: .'admitted'. and .* '%d.%m.%Y'", ["dates", "date_format"]),
        ("of 150 values of 'weight' are missing, .* set data.missing to mean, indicator or drop", ["missing"]),
    ):
        with pytest.raises(UserError, match=sentence):
            Vectors(str(tmp_path / "patients.csv"), **given).setup()
        given |= {name: OPTIONS[name] for name in remedy}
    assert given == OPTIONS
    data = Vectors(str(tmp_path / "patients.csv"), **given)
    data.setup()
    assert data.client_split.writers.tolist() == list(HOSPITALS)
    assert data.clients.images.shape == (150, 1 + 3 + 2)
    essen = data.clients.labels[data.clients.test[4]]
    assert essen.unique().tolist() == [0]


def test_the_hospitals_train_together(tmp_path):
    write_patients(tmp_path / "patients.csv")
    data = Vectors(str(tmp_path / "patients.csv"), seed=0, **OPTIONS)
    options = {"default_root_dir": tmp_path, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = DFLTrainer(max_rounds=3, callbacks=[callbacks.Gossip(k=2), callbacks.Uniform()], **options)
    trainer.fit(DFLModule(Tabular([8], embedding=2), batch_size=8), datamodule=data)
    last = read_metrics(trainer.run.path / "metrics.csv")[-1]
    assert float(last["test_acc"]) > 0.5
    assert np.isfinite(float(last["test_loss"]))
