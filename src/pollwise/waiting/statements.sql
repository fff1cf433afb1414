-- name: state
SELECT state FROM pollwise_durations WHERE name = :name;

-- name: save
INSERT INTO pollwise_durations (name, state, learned_at) VALUES (:name, :state, :now)
ON CONFLICT (name) DO UPDATE SET state = excluded.state, learned_at = excluded.learned_at;

-- name: prune
-- Of more than :most names, those that learned nothing for the longest time are forgotten.
DELETE FROM pollwise_durations WHERE name IN (
    SELECT name FROM pollwise_durations ORDER BY learned_at DESC, name LIMIT -1 OFFSET :most
);
