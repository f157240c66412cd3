-- Drops groups for good, with their reasons. ARGV: epoch, holder, then group, kind and the drop as JSON of each.
-- 1: dropped; 0: one was refused, because it is unknown or in a manifest.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local all = 1
for i = 3, #ARGV, 3 do
  local group, kind, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('ZREM', groups, group) + redis.call('ZREM', ready, group) == 1 then
    forget(group)
    redis.call('RPUSH', drops, record)
    if kind == 'train' then redis.call('HINCRBY', counters, 'dropped', 1) end
  elseif not redis.call('LPOS', drops, record) then
    all = 0
  end
end
return all
