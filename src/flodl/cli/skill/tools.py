"""Coding assistants, and the folder of a project in which each of them looks for skills."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """An assistant: its name, the folder for skills, and what a project has if it uses the assistant."""

    title: str
    folder: str
    marks: tuple[str, ...]


TOOLS = {
    "claude": Tool("Claude Code", ".claude/skills", (".claude", "CLAUDE.md")),
    "cursor": Tool("Cursor", ".cursor/skills", (".cursor", ".cursorrules")),
    "agents": Tool("Codex and others that read .agents", ".agents/skills", (".agents", "AGENTS.md")),
}
DEFAULT = "claude"


def detected(project: Path) -> list[str]:
    """Return the names of the assistants that a project uses, judged by its files."""
    return [name for name, tool in TOOLS.items() if any((project / mark).exists() for mark in tool.marks)]
