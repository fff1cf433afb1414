"""Probes that targets of type `function` name."""

from __future__ import annotations


async def answer() -> str:
    return "fine"
