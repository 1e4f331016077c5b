"""Findings of the doctor, and changes between its reads."""

from __future__ import annotations

from typing import Any

from zkgroups import Finding, Registry

from .sick import Place


def findings(registry: Registry, *groups: str, **options: Any) -> list[Finding]:
    return [finding for checkup in registry.check(groups or None, **options) for finding in checkup.findings]


def places(found: list[Finding]) -> set[Place]:
    return {(finding.code, finding.path) for finding in found}


def the(found: list[Finding], code: str) -> Finding:
    [finding] = [finding for finding in found if finding.code == code]
    return finding
