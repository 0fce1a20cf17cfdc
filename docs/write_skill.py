"""Generate the skill for coding assistants from docs/from-pytorch.md. A test checks that it is up to date."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent
FOLDER = DOCS.parent / "src/flodl/cli/skill/files"
GUIDE = "from-pytorch.md"
# The sections of the guide in each file.
SECTIONS = {
    "SKILL.md": ("What should I change?", "When should I not port?", "How do I check a port?"),
    "references/loop.md": (
        "The training loop",
        "Clipping, accumulation and mixed precision",
        "Schedules",
    ),
    "references/data.md": ("Data",),
    "references/trainer.md": ("The whole loop",),
    "references/lightning.md": ("A Lightning module",),
    "references/checkpoints.md": ("Checkpoints",),
    "references/model.md": ("The model",),
    "references/hugging-face.md": ("Hugging Face models",),
    "references/devices.md": ("Several devices",),
    "references/export.md": ("Export",),
}
# Sections of other pages: the file, the page, and its sections (none: the whole page).
OTHERS = {
    "references/mistakes.md": ("train-step.md", ("Mistakes that are found", "Limits")),
    "references/footguns.md": ("footguns.md", ()),
}
NOT_IN_THE_SKILL = {"", "For coding assistants"}  # "" is the text before the first heading
HEAD = """\
---
name: flodl-porting
description: Port PyTorch or Lightning code to flodl (TrainStep, Loader, Trainer, FlowBuilder) and check \
that the losses stay the same. Use it when code trains with PyTorch, Lightning or transformers and should \
run faster, resume after a kill, train on several devices, or become a flodl graph.
---

# Port PyTorch code to flodl

Work in this order, one change at a time:

1. Read the training code, and find the rows of the table below that the user needs. Propose those, and name
   what stays. If no row applies, say so and change nothing.
2. Before changing anything, fix the seed and write the losses of the first 10 to 20 steps to a file, on a CPU
   if possible.
3. Read the reference file of the row. Make that one change.
4. Run the same steps again and compare: on a CPU with `tier="eager"` the losses are equal to the last bit. If
   they are not, the table at the end lists likely causes. Fix it before the next change.
5. On a GPU, print `step.report()` (of a trainer: `trainer.train_step.report()`). It says which tier runs, and
   what prevents a faster one; `references/footguns.md` explains the reason that it names.
6. Report to the user what changed, the compared losses, and what was left as it is.

Do not invent names. `fdl api-ref` lists the public ones, `fdl api-ref Trainer` shows the signature and an
example of one. Errors of flodl say what to do; read them in full.

| file | read it for |
| --- | --- |
"""
PURPOSES = {
    "references/loop.md": "`TrainStep`: the loop, clipping, accumulation, mixed precision, schedules",
    "references/data.md": "`Loader` instead of `DataLoader`",
    "references/trainer.md": "`Trainer`: epochs, evaluation, early stopping, averaged weights, saves",
    "references/lightning.md": "Lightning modules, callbacks and trainer arguments",
    "references/checkpoints.md": "`.pt` and `.ckpt` files, continuing a run",
    "references/model.md": "`FlowBuilder`: what each line of a `forward` becomes",
    "references/hugging-face.md": "transformers models",
    "references/devices.md": "several GPUs instead of DDP",
    "references/export.md": "`torch.export`, ONNX",
    "references/mistakes.md": "errors and warnings of a step, and its limits",
    "references/footguns.md": "what a captured or compiled step repeats, detects or rejects",
}


def skill_files() -> dict[str, str]:
    """Return the text of every file of the skill, by path."""
    guide = sections(GUIDE)
    left_out = set(guide) - NOT_IN_THE_SKILL - {name for names in SECTIONS.values() for name in names}
    assert not left_out, f"sections of {GUIDE} that are in no file of the skill: {left_out}"
    files = {}
    for path, names in SECTIONS.items():
        head = HEAD + purposes() if path == "SKILL.md" else ""
        files[path] = head + "\n".join(converted(guide[name], path, GUIDE) for name in names)
    for path, (page, names) in OTHERS.items():
        found = sections(page)
        files[path] = "\n".join(converted(found[name], path, page) for name in names or found)
    return {path: text.strip() + "\n" for path, text in files.items()}


def purposes() -> str:
    return "".join(f"| `{path}` | {purpose} |\n" for path, purpose in PURPOSES.items()) + "\n"


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page by title, each with its heading."""
    parts = re.split(r"^(?=## )", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    titles = [part.splitlines()[0].removeprefix("## ") if part.startswith("## ") else "" for part in parts]
    return dict(zip(titles, parts))


def converted(text: str, path: str, page: str) -> str:
    """Return a section without HTML: one block below the other, and links that work in the skill."""
    text = re.sub(
        r"<table><tr><th>(.+?)</th><th>(.+?)</th></tr><tr><td>(.*?)</td><td>(.*?)</td></tr></table>",
        lambda pair: f"{pair[1]}:\n\n{pair[3].strip()}\n\n{pair[2]}:\n\n{pair[4].strip()}",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"^<!-- not run: .*? -->\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", lambda found: link(found[1], found[2], path, page), text)
    return text.rstrip() + "\n"


def link(words: str, target: str, path: str, page: str) -> str:
    """Return a link to the file of the skill with that section, or the name of the page."""
    if target.startswith("https://"):
        return f"[{words}]({target})"
    file, _, anchor = target.partition("#")
    for other, (source, names) in {**{p: (GUIDE, n) for p, n in SECTIONS.items()}, **OTHERS}.items():
        if source == (file or page) and (not names or anchor in map(anchor_of, names)):
            return words if other == path else f"[{words}]({relative(other, path)})"
    return f"{words} (docs/{file} of flodl)"


def relative(other: str, path: str) -> str:
    return other.removeprefix("references/") if path.startswith("references/") else other


def anchor_of(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    for path, text in skill_files().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(text, encoding="utf-8")
        print(f"{FOLDER / path}: {len(text.splitlines())} lines")
