"""What a task of an export leaves out because it is damaged."""

from __future__ import annotations

from tieredstore.scan.findings import Finding, Severity

MOST_FINDINGS = 20


class LeftOut:
    """Counts damage and keeps the first descriptions: an `OnFinding`."""

    def __init__(self) -> None:
        self.count = 0
        self.texts: list[str] = []

    def __call__(self, finding: Finding) -> None:
        if finding.severity is Severity.DAMAGE:
            self.count += 1
            if len(self.texts) < MOST_FINDINGS:
                self.texts.append(f"{finding.kind}: {finding}")
