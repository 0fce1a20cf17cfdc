"""Formatting durations, sizes, counts and metrics."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.core.formats import format_bytes, format_count, format_duration, format_metric, with_article


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0ms"),
        (0.042, "42ms"),
        (0.9999, "999ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (59.99, "59.9s"),
        (60, "1m 00s"),
        (90, "1m 30s"),
        (3599, "59m 59s"),
        (3600, "1h 00m"),
        (3661, "1h 01m"),
        (360_000, "100h 00m"),
        (-1, "—"),
        (math.inf, "—"),
        (math.nan, "—"),
    ],
)
def test_durations(seconds, shown):
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KB"), (104_857_600, "100 MB"), (2_254_857_830, "2.1 GB")],
)
def test_sizes(count, shown):
    assert format_bytes(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0001, "1.00e-04"),
        (-0.0001, "-1.00e-04"),
        (0.5, "0.5000"),
        (99.5, "99.5000"),
        (100, "100.00"),
        (-1234.5678, "-1234.57"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_metrics(value, shown):
    assert format_metric(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0"), (999, "999"), (1_000, "1.0K"), (12_300, "12.3K"), (7_000_000_000, "7.0B")]
)
def test_counts(count, shown):
    assert format_count(count) == shown


@settings(derandomize=True, deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_float_has_a_short_form(value):
    assert 0 < len(format_duration(value)) <= 320
    assert format_metric(value)
    if math.isfinite(value) and abs(value) < 1e12:
        assert len(format_metric(value)) <= 17


@pytest.mark.parametrize(
    ("article", "names"),
    [
        ("a", "list Tensor Sequential ReLU GRU UNet UserDict OneCycleLR StepLR NoneType Linear uint8 Subset"),
        ("an", "int AdamW ExponentialLR OrderedDict RNN LSTM SGD MLP RMSprop L1Loss Upsample ndarray object"),
    ],
)
def test_the_article_of_a_type_follows_how_its_name_is_spoken(article, names):
    assert {with_article(name).split()[0] for name in names.split()} == {article}
