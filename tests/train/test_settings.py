"""Settings of a trainer that would have no effect."""

import numpy as np
import pytest

from flodl import Loader
from flodl.checkpoint import last
from flodl.core import FlodlError, TrainError


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


def test_numbers_of_numpy_are_those_of_python(make, data, tmp_path):
    trainer = make(
        accumulate=np.int64(2),
        seed=np.int32(3),
        clip_norm=np.float32(1.0),
        clip_value=np.float64(1.0),
        ema=np.float32(0.5),
        save_every=np.int64(1),
        log_every=np.int16(1),
        checkpoint_dir=tmp_path,
    )
    result = trainer.fit(data, epochs=np.int64(2), batch_size=np.int64(4), limit=np.uint8(4))
    assert (len(result.history), result.steps) == (2, 4)
    settings = trainer.train_step.settings
    assert (type(settings.accumulate), type(settings.clip_norm)) == (int, float)
    assert len(trainer.evaluate(data, np.int64(5))) > 0
    # A resume does not take them for other values.
    again = make(accumulate=2, seed=3, clip_norm=1.0, clip_value=1.0, ema=0.5, checkpoint_dir=tmp_path)
    assert again.fit(data, epochs=3, batch_size=4, limit=4).steps == 6


@pytest.mark.parametrize("value", [np.bool_(True), True, np.float64(2.0), np.array([2])], ids=repr)
def test_bools_fractions_and_arrays_are_not_counts(make, data, value):
    with pytest.raises(FlodlError, match="accumulate="):
        make(accumulate=value)
    with pytest.raises(FlodlError, match="epochs="):
        make().fit(data, epochs=value, batch_size=4)
    with pytest.raises(FlodlError, match="batch_size"):
        make().fit(data, epochs=1, batch_size=value)
    with pytest.raises(FlodlError, match="batch_size="):
        Loader(data, value)
