"""Settings of a trainer that would have no effect."""

import pytest

from flodl.checkpoint import last
from flodl.core import TrainError


@pytest.mark.parametrize("setting", [{"keep": last(2)}, {"save_every": 2}, {"save_every_steps": 10}])
def test_a_setting_for_saves_without_a_folder_is_reported(make, capsys, setting, tmp_path):
    make(**setting)
    ((name, value),) = setting.items()
    warning = f"{name}={value} has no effect without a checkpoint_dir: nothing will be saved."
    assert capsys.readouterr().err.count(warning) == 1
    make(**setting, checkpoint_dir=tmp_path)
    assert capsys.readouterr().err == ""


def test_a_decay_that_is_not_a_number_is_an_error(make):
    with pytest.raises(TrainError, match=r"ema='0.99'. Use a decay between 0 and 1, such as 0.999, or None."):
        make(ema="0.99")
