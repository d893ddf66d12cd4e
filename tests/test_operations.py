"""docs/operations.md names every line that the service logs or prints, and every exit code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from proxy.launch import Exit
from tests.serving import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
LEVELS = {"info", "warning", "error", "exception", "critical"}
FOLDERS = ("proxy", "engine_lib", "model_repository")
LEAST = 4  # letters of a line that must stand on the page; a line of less is a request's own, or another program's


def lines() -> Iterator[tuple[str, list[str]]]:
    """Where a line is logged or printed, and its fixed parts."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ROOT / "engine_lib" / "training" in path.parents:  # no part of the service
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                    owner = node.func.value
                    is_log = isinstance(owner, ast.Name) and owner.id == "log" and node.func.attr in LEVELS
                    if is_log or node.func.attr == "_say":
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", fixed_parts(node.args[0], is_log=is_log)


def fixed_parts(node: ast.expr, *, is_log: bool) -> list[str]:
    if isinstance(node, ast.JoinedStr):
        texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
    elif isinstance(node, ast.Constant):
        texts = [str(node.value)]
    else:
        texts = []
    parts = [part for text in texts for part in (re.split(r"%\S*[a-z]", text) if is_log else [text])]
    return [part for text in parts for part in text.split("\n") if len(re.sub(r"\W", "", part)) >= LEAST]


FOUND = dict(lines())


@pytest.mark.parametrize("place", FOUND)
def test_the_page_names_the_line(place: str) -> None:
    begin = [part.strip(" :;,.'(") for part in FOUND[place][:1]]
    assert [part for part in begin if part not in PAGE] == [], f"docs/operations.md says nothing of what {place} says"


def test_lines_were_found() -> None:
    assert len(FOUND) > 25
    assert sum(bool(parts) for parts in FOUND.values()) > 20


def test_the_page_names_every_exit_code() -> None:
    section = PAGE.split("## Exit codes")[1].split("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(Exit)
