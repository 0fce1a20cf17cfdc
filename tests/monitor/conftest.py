"""A monitor that only writes its journal, and what it recorded."""

import pytest

from flodl.monitor import Monitor, read


@pytest.fixture
def monitor(tmp_path):
    created = Monitor(3, tmp_path / "run", config={}, console=False, resources=False, step_rate=None)
    yield created
    created.close()


@pytest.fixture
def recorded(monitor):
    """Return a function that returns the data of all recorded events of a kind."""

    def data_of(kind):
        monitor._journal.flush()
        return [entry.event.data for entry in read(monitor.run_dir) if entry.event.kind == kind]

    return data_of
