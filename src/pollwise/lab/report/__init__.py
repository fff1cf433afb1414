"""Reports: strategies compared on one trace, as a page or a picture.

`compare` computes the facts, `charts` draws them into a `drawing`, and `page` and `picture` put the
charts together as HTML or SVG.
"""
