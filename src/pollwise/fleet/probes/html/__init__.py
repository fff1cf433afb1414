"""The HTML probe: the text of the elements that a CSS selector matches, and what changed in it."""
