"""Paths in the repository of this project."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
JAVA = ROOT / "tests" / "interop" / "java"
