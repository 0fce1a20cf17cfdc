"""Hosts as network namespaces of this machine, joined by a bridge."""

import itertools
import os
import signal
import subprocess
import time

import pytest

_NUMBERS = itertools.count(1)


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Host:
    """A network namespace with one address, and the processes started in it."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.processes = []

    def start(self, command, output, **variables):
        """Start a program; what it prints is appended to a file."""
        words = ["ip", "netns", "exec", self.name, *command]
        with output.open("a") as file:
            options = {"stdout": file, "stderr": subprocess.STDOUT, "env": {**os.environ, **variables}}
            process = subprocess.Popen(words, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def cut(self):
        """Unplug the cable: packets vanish without an error."""
        ip("link", "set", f"{self.name}o", "down")

    def end(self):
        """End the processes of this host, and those that they started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in map(int, ip("netns", "pids", self.name).split()):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 3.0
            while ip("netns", "pids", self.name).split() and time.monotonic() < deadline:
                time.sleep(0.05)
        for process in self.processes:
            process.wait(10)


class Network:
    def __init__(self):
        # Names of devices have 15 characters at most.
        self.prefix = f"fl{os.getpid() % 100000}x{next(_NUMBERS)}"
        self.hosts = []
        ip("link", "add", self.prefix, "type", "bridge")
        ip("link", "set", self.prefix, "up")

    def add(self):
        number = len(self.hosts) + 1
        host = Host(f"{self.prefix}n{number}", f"10.213.0.{number}")
        outer, inner = f"{host.name}o", f"{host.name}i"
        ip("netns", "add", host.name)
        self.hosts.append(host)
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", host.name)
        ip("link", "set", outer, "master", self.prefix, "up")
        ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", inner)
        ip("-n", host.name, "link", "set", inner, "up")
        ip("-n", host.name, "link", "set", "lo", "up")
        ip("-n", host.name, "route", "add", "default", "via", "10.213.0.254")
        return host

    def close(self):
        for host in self.hosts:
            host.end()
            ip("netns", "del", host.name)
        ip("link", "del", self.prefix)


def make_network():
    """Return a network, or skip the test where namespaces are not permitted."""
    try:
        return Network()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root and iproute2 on Linux: {error}")
