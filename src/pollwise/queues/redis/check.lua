-- Checks that all keys under our names are ours. Returns the layout's version, or the foreign key.
local types = {
  hash = {META, JOBS, PAYLOADS, HEADS, UNIQUE, PAGES},
  zset = {BLOCKED},
  set = {KINDS},
}
for _, key in pairs(SETS) do table.insert(types.zset, key) end
for _, key in pairs(PARTS) do table.insert(types.hash, key) end
for wanted, keys in pairs(types) do
  for _, key in ipairs(keys) do
    local found = call('TYPE', key)['ok']
    if found ~= 'none' and found ~= wanted then return {key, found} end
  end
end
return call('HGET', META, 'layout') or ''
