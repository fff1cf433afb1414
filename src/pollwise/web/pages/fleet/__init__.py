"""The pages of fleets: one fleet with its targets, groups and nodes, and one target."""
