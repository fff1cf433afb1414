"""The public status page: what everybody may see of chosen groups."""
