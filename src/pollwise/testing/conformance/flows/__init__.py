"""Flows: `freeing` when all is done, `ending` in other ways, and `keeping` what is shown of them;
`jobs` has what these share.
"""
