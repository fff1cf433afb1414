"""Badges: a name and a state as a small picture, for README files and other pages."""

from __future__ import annotations

from markupsafe import Markup

#: Colours with enough contrast to white text, by tone.
COLOURS = {"green": "#176f36", "amber": "#945600", "red": "#b3261e", "grey": "#55606f"}
#: The approximate width of a character, and the space beside a text.
CHARACTER, MARGIN = 6.6, 7.0
#: Longer names are cut.
LABEL_MAX = 60


def badge(label: str, value: str, tone: str) -> str:
    """An SVG picture: the label on grey, the value on the colour of its state."""
    label = label if len(label) <= LABEL_MAX else label[: LABEL_MAX - 1] + "…"
    left, right = (len(text) * CHARACTER + 2 * MARGIN for text in (label, value))
    whole = left + right
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" '
            'aria-label="{label}: {value}"><title>{label}: {value}</title>'
            '<clipPath id="r"><rect width="{whole}" height="20" rx="4"/></clipPath>'
            '<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#3b434f"/>'
            '<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
            '<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" '
            'text-anchor="middle"><text x="{mid_left}" y="14">{label}</text>'
            '<text x="{mid_right}" y="14">{value}</text></g></svg>'
        ).format(
            whole=f"{whole:.0f}",
            left=f"{left:.0f}",
            right=f"{right:.0f}",
            mid_left=f"{left / 2:.1f}",
            mid_right=f"{left + right / 2:.1f}",
            colour=COLOURS.get(tone, COLOURS["grey"]),
            label=label,
            value=value,
        )
    )
