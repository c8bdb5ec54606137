"""Values without meaning are refused where an object is made, by a sentence with the option and the value."""

from pathlib import Path

import pytest
import yaml

from dfl_lightning import callbacks, data, models, objectives
from dfl_lightning.utils.errors import UserError

SHIPPED = {name: getattr(home, name) for home in (callbacks, data, models, objectives) for name in home.__all__}
REFUSED = yaml.safe_load((Path(__file__).parent / "refused_values.yaml").read_text())
CASES = [
    pytest.param(SHIPPED[name], given, sentence, id=f"{name} {given}")
    for name, cases in REFUSED.items()
    for given, sentence in cases
]


@pytest.mark.parametrize(("kind", "given", "sentence"), CASES)
def test_a_value_without_meaning_is_refused(kind, given, sentence):
    with pytest.raises(UserError, match=sentence):
        kind(**given)
