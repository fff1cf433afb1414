"""Charts as SVG, drawn on the server. Shapes stretch with the page; texts beside them do not.

Colours are classes of `app.css` (`tone-blue`, …), never values, so that charts follow the theme.
Each position has an area that shows its values on hover: as a `<title>` without the script.
"""

from __future__ import annotations

from pollwise.web.charts.drawing import Series, columns, lines, sparkline, strip, ticks
from pollwise.web.charts.pace import pace

__all__ = ["Series", "columns", "lines", "pace", "sparkline", "strip", "ticks"]
