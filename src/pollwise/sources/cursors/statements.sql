-- name: load
SELECT cursor FROM pollwise_cursors WHERE name = :name;

-- name: insert
INSERT INTO pollwise_cursors (name, cursor, saved_at) VALUES (:name, :cursor, :now)
ON CONFLICT (name) DO NOTHING;

-- name: replace
UPDATE pollwise_cursors SET cursor = :cursor, saved_at = :now
WHERE name = :name AND cursor = :before;
