"""The resource sampler: its readings, stopping it, and missing drivers."""

import queue
import sys
import threading
import types

import pytest

from flodl.monitor.resources import Gpu, Host, ResourceSampler, find_gpus, read_resources
from flodl.monitor.resources.allocator import cuda_pools
from flodl.monitor.resources.amd import open_reader as open_amd
from flodl.monitor.resources.gpus import with_allocator


def test_a_reading_has_cpu_and_memory():
    events = queue.Queue()
    with ResourceSampler(events.put, interval_s=0.02, rank=3):
        event = events.get(timeout=20)
    assert (event.kind, event.rank) == ("resources", 3)
    assert 0 <= event.data["cpu_pct"] <= 100
    assert event.data["process_cpu_pct"] >= 0
    assert 0 < event.data["process_ram_bytes"] <= event.data["ram_used_bytes"] < event.data["ram_total_bytes"]


def test_after_stop_the_thread_has_ended_and_no_event_follows():
    events = queue.Queue()
    sampler = ResourceSampler(events.put, interval_s=0.01).start()
    events.get(timeout=20)
    sampler.stop()
    num_events = events.qsize()
    assert "flodl-resources" not in [thread.name for thread in threading.enumerate()]
    assert events.qsize() == num_events


def test_start_is_idempotent_and_the_sampler_can_be_restarted():
    events = queue.Queue()
    sampler = ResourceSampler(events.put, interval_s=0.01)
    assert sampler.start() is sampler.start()
    assert [thread.name for thread in threading.enumerate()].count("flodl-resources") == 1
    sampler.stop()
    sampler.stop()
    while not events.empty():
        events.get()
    with sampler:
        assert events.get(timeout=20).kind == "resources"


def test_stop_can_be_called_from_the_callback():
    stopped = threading.Event()
    sampler = ResourceSampler(lambda event: (sampler.stop(), stopped.set()), interval_s=0.01)
    sampler.start()
    assert stopped.wait(20)


def test_a_failing_callback_stops_the_sampling_with_one_warning(capsys):
    failed = threading.Event()

    def fail(event):
        failed.set()
        raise OSError("disk full")

    sampler = ResourceSampler(fail, interval_s=0.01).start()
    thread = sampler._thread
    assert failed.wait(20)
    thread.join(20)
    sampler.stop()
    assert capsys.readouterr().err == "resource sampling stopped: OSError: disk full\n"


def test_the_interval_must_be_positive():
    with pytest.raises(ValueError, match="interval_s is 0"):
        ResourceSampler(print, interval_s=0)


def test_without_psutil_readings_are_empty(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert Host().read() == {}


def test_the_first_reading_has_no_percentages():
    host = Host()
    assert "cpu_pct" not in host.read()
    assert "cpu_pct" in host.read()


def test_a_reading_contains_gpus_without_unknown_values():
    reading = read_resources(Host(), lambda: [Gpu(0, "A100", "u", util_pct=50.0)])
    assert reading["gpus"] == [{"device": 0, "name": "A100", "util_pct": 50.0}]


def test_without_a_driver_there_are_no_gpus():
    assert "gpus" not in read_resources(Host(), None)


def test_gpus_that_torch_cannot_use_are_omitted():
    gpus = [Gpu(index, "A100", f"uuid-{index}") for index in range(4)]
    visible = with_allocator(gpus, {"uuid-3": (0, 1, 2), "uuid-1": (1, 3, 4)})
    assert [(gpu.device, gpu.uuid, gpu.vram_reserved_bytes) for gpu in visible] == [
        (0, "uuid-3", 2),
        (1, "uuid-1", 4),
    ]
    assert with_allocator(gpus, {}) == gpus


def test_reading_the_allocator_does_not_initialize_cuda():
    import torch

    before = torch.cuda.is_initialized()
    cuda_pools()
    assert torch.cuda.is_initialized() == before


def test_sampling_does_not_import_torch():
    import subprocess

    code = (
        "import sys, queue; from flodl.monitor.resources import ResourceSampler; q = queue.Queue()\n"
        "with ResourceSampler(q.put, interval_s=0.01): q.get(timeout=20)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_amd_gpu_is_read_and_failing_queries_are_omitted(monkeypatch):
    def fail(handle):
        raise RuntimeError("not supported")

    fake = types.SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["card"],
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "MI300X"},
        amdsmi_get_gpu_device_uuid=lambda handle: "uuid",
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 75},
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_used": 1, "vram_total": 4},
        amdsmi_get_power_info=fail,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    (gpu,) = open_amd()()
    assert gpu.to_dict() == {
        "device": 0,
        "name": "MI300X",
        "util_pct": 75.0,
        "vram_used_bytes": 1024**2,
        "vram_total_bytes": 4 * 1024**2,
    }


def test_the_drivers_of_this_machine_can_be_read():
    reader = find_gpus()
    if reader is not None:
        assert all(gpu.vram_total_bytes is None or gpu.vram_total_bytes > 0 for gpu in reader())
