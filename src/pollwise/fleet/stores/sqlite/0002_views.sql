-- Version 2: pages and counts of targets without reading their readings.
--
-- type, group: of the target's definition.
-- The index has everything by which targets are counted, chosen and sorted.

ALTER TABLE pollwise_fleet_targets ADD COLUMN type TEXT;

ALTER TABLE pollwise_fleet_targets ADD COLUMN "group" TEXT;

CREATE INDEX pollwise_fleet_targets_view
    ON pollwise_fleet_targets (fleet, "group", state, paused, succeeded_at, due, interval);
